// The npm package lumberjack-client: version 2, each window one compressed frame.
// node lumberjack_client.js PORT COUNT: COUNT events in one window, then 3 windows of 1.
const LumberjackClient = require('lumberjack-client')

const [port, count] = process.argv.slice(2).map(Number)
const client = new LumberjackClient({ host: '127.0.0.1', port })
let sent = 0

function log(events) {
  for (let i = 0; i < events; i++) client.log({ n: sent++, text: 'über die Leitung' })
}

log(count) // queued until the connection stands
client.socket.on('data', (bytes) => {
  for (let at = 0; at + 6 <= bytes.length; at += 6) {
    console.log(`ack ${bytes.toString('latin1', at, at + 2)} ${bytes.readUInt32BE(at + 2)}`)
    if (sent === count + 3) process.exit(0)
    log(1)
  }
})
