-- UMQ in Wireshark and tshark, on WebSocket: commands, and binary messages as their attachments.
--
-- The session is found by the subprotocol `umq` of the WebSocket handshake, or by the server's port if
-- the client names none.  Wireshark shows dissectors no empty WebSocket messages: behind an empty
-- attachment, attachments are linked to the wrong message.

local umq = Proto("umq", "UMQ")

local PORT = 5048
local COMMANDS = {
  ["-"] = "Attachment error", H = "Hello", W = "Welcome", F = "Fatal", C = "Call", B = "Callback",
  R = "Result", E = "Error", ["!"] = "Error", T = "Topic update", D = "Topic closed",
  U = "Unsubscribe", S = "Set attribute", X = "Unset attribute",
}
local BINARY = 2 -- WebSocket's opcode

local fields = {
  command = ProtoField.string("umq.command", "Command"),
  name = ProtoField.string("umq.command.name", "Name"),
  id = ProtoField.string("umq.id", "Id"),
  attachments = ProtoField.uint32("umq.attachments", "Attachments"),
  payload = ProtoField.string("umq.payload", "Payload"),
  method = ProtoField.string("umq.method", "Method"),
  callback = ProtoField.string("umq.callback", "Callback"),
  attribute = ProtoField.string("umq.attribute", "Attribute"),
  value = ProtoField.string("umq.attribute.value", "Value"),
  code = ProtoField.uint32("umq.code", "Code"),
  attachment = ProtoField.bytes("umq.attachment", "Attachment"),
  announced = ProtoField.framenum("umq.announced_in", "Announced in", base.NONE, frametype.NONE),
  call = ProtoField.framenum("umq.call_in", "Call in", base.NONE, frametype.REQUEST),
}
umq.fields = fields

local malformed = ProtoExpert.new(
  "umq.malformed", "This is no UMQ command", expert.group.MALFORMED, expert.severity.ERROR
)
local stray = ProtoExpert.new(
  "umq.stray", "No message has announced this attachment", expert.group.PROTOCOL, expert.severity.WARN
)
umq.experts = { malformed, stray }

local opcode = Field.new("websocket.opcode")

-- Calls and announcements of each direction of each connection, and what was found out about a frame
-- when it was seen first.
local sides, found, lines, counts

function umq.init()
  sides, found, lines, counts = {}, {}, {}, {}
end

-- Which connection a packet belongs to.  Fields of other dissectors, like tcp.stream, are not there when
-- all packets are read for the first time, and that is when connections are followed.
local function stream_key(pinfo)
  local ends = { tostring(pinfo.src) .. ":" .. pinfo.src_port, tostring(pinfo.dst) .. ":" .. pinfo.dst_port }
  table.sort(ends)
  return table.concat(ends, " ")
end

-- Which WebSocket message of its packet this is.  A packet is read first once, then any number of times.
local function index_of(pinfo)
  local count = counts[pinfo.number] or { first = 0, again = 0 }
  counts[pinfo.number] = count
  if not pinfo.visited then
    count.first = count.first + 1
    return count.first
  end
  count.again = count.again % math.max(1, count.first) + 1
  return count.again
end

local function side_of(pinfo, port)
  local key = stream_key(pinfo) .. " " .. port
  if not sides[key] then sides[key] = { calls = {}, announced = {}, first = 1 } end
  return sides[key]
end

-- Remember what `find` finds when the WebSocket message is seen first: one frame of a capture may
-- hold several of them, which come in order.
local function once(pinfo, index, find)
  local key = pinfo.number .. ":" .. index
  if found[key] == nil then found[key] = find() or false end
  return found[key] or nil
end

local function value_of(id)
  local digits = id:gsub("^0+", "")
  return digits == "" and "0" or digits
end

-- A message with this many slots stands in this frame.
local function announce(side, number, count)
  for _ = 1, count do side.announced[#side.announced + 1] = number end
end

-- The frame that announced the next attachment.
local function fill(side)
  local number = side.announced[side.first]
  if number then side.first = side.first + 1 end
  return number
end

local function add_announcement(tree, number)
  if number then
    tree:add(fields.announced, number):set_generated()
  else
    tree:add_proto_expert_info(stray)
  end
end

local function dissect_binary(tvb, pinfo, tree, index)
  local branch = tree:add(umq, tvb(), "UMQ Attachment, " .. tvb:len() .. " bytes")
  if tvb:len() > 0 then branch:add(fields.attachment, tvb()) end
  add_announcement(branch, once(pinfo, index, function() return fill(side_of(pinfo, pinfo.src_port)) end))
  return "Attachment of " .. tvb:len() .. " bytes"
end

local function add_details(branch, command, payload, range)
  if command == "C" then
    local method = payload:match('^%[%s*"([^"\\]*)"')
    if method then branch:add(fields.method, range, method) end
  elseif command == "B" then
    local callback = payload:match("^([0-9A-Z]*):")
    if callback then branch:add(fields.callback, range, callback) end
  elseif command == "S" then
    local name, value = payload:match("^([^=]*)=(.*)$")
    if name then
      branch:add(fields.attribute, range, name)
      branch:add(fields.value, range, value)
    end
  elseif command == "X" then
    branch:add(fields.attribute, range, payload)
  elseif command == "F" or command == "E" or command == "!" then
    local code = payload:match("^(%d+)") -- "12 text" or "12"
    if code and #code < 10 then branch:add(fields.code, range, tonumber(code)) end
  end
end

-- What stands in connection with earlier messages: a call, or an announcement.
local function relate(pinfo, command, id, count)
  local side = side_of(pinfo, pinfo.src_port)
  if count > 0 then announce(side, pinfo.number, count) end
  if command == "-" then return fill(side) end
  if command == "C" or command == "B" then
    side.calls[value_of(id)] = pinfo.number
  elseif command == "R" or command == "E" or command == "!" then
    local calls = side_of(pinfo, pinfo.dst_port).calls
    local number = calls[value_of(id)]
    calls[value_of(id)] = nil
    return number
  end
end

local function dissect_text(tvb, pinfo, tree, index)
  local text = tvb():string(ENC_UTF_8)
  local digits, rest = text:match("^A([0-9A-Z]*):(.*)$")
  local command, id, payload = (rest or text):match("^([-HWFCBRETDUSX!])([0-9A-Z]*):(.*)$")
  if not command then
    tree:add(umq, tvb(), "UMQ"):add_proto_expert_info(malformed)
    return "no command"
  end
  local count = digits and tonumber(digits == "" and "0" or digits, 36) or 0
  local name = COMMANDS[command]
  local title = id == "" and name or name .. " " .. id
  local branch = tree:add(umq, tvb(), "UMQ " .. title)
  branch:add(fields.command, command)
  branch:add(fields.name, name)
  if digits then branch:add(fields.attachments, count) end
  branch:add(fields.id, id)
  branch:add(fields.payload, tvb(tvb:len() - #payload), payload)
  add_details(branch, command, payload, tvb(tvb:len() - #payload))
  local number = once(pinfo, index, function() return relate(pinfo, command, id, count) end)
  if command == "-" then
    add_announcement(branch, number)
  elseif number then
    branch:add(fields.call, number):set_generated()
  end
  return title .. (payload ~= "" and ": " .. payload:sub(1, 60) or "")
end

-- WebSocket's opcode says it: the last one, as messages come.  Where no fields are made, what looks like
-- no command is binary.
local function is_binary(tvb)
  local opcodes = { opcode() }
  if #opcodes > 0 then return opcodes[#opcodes].value == BINARY end
  return tvb:len() == 0 or not tvb():raw():match("^A?[0-9A-Z]*:?[-HWFCBRETDUSX!][0-9A-Z]*:")
end

function umq.dissector(tvb, pinfo, tree)
  local index = index_of(pinfo)
  local said = (is_binary(tvb) and dissect_binary or dissect_text)(tvb, pinfo, tree, index)
  -- A packet may hold several messages, and each of them is announced anew by WebSocket.
  lines[pinfo.number] = index > 1 and lines[pinfo.number] .. ", " .. said or said
  pinfo.cols.protocol = "UMQ"
  pinfo.cols.info = lines[pinfo.number]
  return tvb:len()
end

DissectorTable.get("ws.protocol"):add("umq", umq)
DissectorTable.get("ws.port"):add(PORT, umq) -- for clients that name no subprotocol

-- A WebSocket begins as HTTP, on this port too; newer versions have a dissector of their own for TCP.
local known, http = pcall(Dissector.get, "http-over-tcp")
if not known or not http then http = Dissector.get("http") end
DissectorTable.get("tcp.port"):add(PORT, http)
