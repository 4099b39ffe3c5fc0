// The npm package lumberjack-protocol: version 1, plain data frames over TLS, one W for ever.
// node lumberjack_protocol.js PORT CA COUNT WINDOW
const fs = require('fs')
const lumberjack = require('lumberjack-protocol')

const [port, ca, count, window] = process.argv.slice(2)
const client = lumberjack.client(
  { host: 'localhost', port: Number(port), ca: [fs.readFileSync(ca)], servername: 'localhost' },
  { windowSize: Number(window), maxQueueSize: 10000 }
)
client.on('disconnect', (error) => {
  console.log(`disconnected ${error}`)
  process.exit(1)
})
client.on('connect', () => {
  client._socket.on('ack', (sequence) => {
    console.log(`ack ${sequence}`)
    if (sequence === Number(count)) process.exit(0)
  })
})
for (let n = 0; n < Number(count); n++) {
  client.writeDataFrame({ line: `line ${n}`, host: 'web-1', text: 'über die Leitung' })
}
