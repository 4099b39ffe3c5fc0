-- MicroMsg2 in Wireshark and tshark: the handshake, messages, commands, extensions and errors.
--
-- The byte that begins a frame means something else during the handshake.  A capture has to begin
-- with the connection: the first to speak is the client, who sends two handshake frames, and the
-- server sends one.

local micromsg2 = Proto("micromsg2", "MicroMsg2")

local PORT = 5045
local COMMAND, EXTENSION, ERROR, LARGE, CONTINUED = 1, 2, 4, 8, 16
local KINDS = { [0] = "Message", [COMMAND] = "Command", [EXTENSION] = "Extension", [ERROR] = "Error" }
local HANDSHAKES = { client = 2, server = 1 }

local fields = {
  kind = ProtoField.string("micromsg2.kind", "Kind"),
  flags = ProtoField.uint8("micromsg2.flags", "Flags", base.HEX),
  large = ProtoField.bool("micromsg2.flags.large", "Large payload", 8, nil, LARGE),
  continued = ProtoField.bool("micromsg2.flags.continued", "Continued", 8, nil, CONTINUED),
  major = ProtoField.uint8("micromsg2.major", "Major version"),
  minor = ProtoField.uint8("micromsg2.minor", "Minor version"),
  identity = ProtoField.string("micromsg2.identity", "Identity"),
  required = ProtoField.string("micromsg2.required", "Required extensions"),
  optional = ProtoField.string("micromsg2.optional", "Optional extensions"),
  sequence = ProtoField.uint16("micromsg2.sequence", "Sequence"),
  destination = ProtoField.string("micromsg2.destination", "Destination"),
  properties = ProtoField.string("micromsg2.properties", "Properties"),
  length = ProtoField.uint32("micromsg2.length", "Length"),
  payload = ProtoField.bytes("micromsg2.payload", "Payload"),
  command = ProtoField.string("micromsg2.command", "Command"),
  extension = ProtoField.uint8("micromsg2.extension", "Extension"),
  extension_name = ProtoField.string("micromsg2.extension.name", "Extension name"),
  ack = ProtoField.uint16("micromsg2.ack", "Acknowledges up to"),
  error = ProtoField.string("micromsg2.error", "Error"),
}
micromsg2.fields = fields

local malformed = ProtoExpert.new(
  "micromsg2.malformed", "This is no MicroMsg2 frame", expert.group.MALFORMED, expert.severity.ERROR
)
micromsg2.experts = { malformed }

-- What is known of each connection, and which frames were handshakes: frames may be shown again, in
-- any order, when all have been seen once.
local streams, handshakes

function micromsg2.init()
  streams, handshakes = {}, {}
end

-- Which connection a packet belongs to.  Fields of other dissectors, like tcp.stream, are not there when
-- all packets are read for the first time, and that is when connections are followed.
local function stream_key(pinfo)
  local ends = { tostring(pinfo.src) .. ":" .. pinfo.src_port, tostring(pinfo.dst) .. ":" .. pinfo.dst_port }
  table.sort(ends)
  return table.concat(ends, " ")
end

local function stream_of(pinfo)
  local key = stream_key(pinfo)
  local stream = streams[key]
  if not stream then
    stream = { client = pinfo.src_port, client_seen = 0, server_seen = 0, names = {} }
    streams[key] = stream
  end
  return stream
end

-- Read the pieces of a frame one after another; `nil` from `next` means that more has to come.
local function reader(tvb, offset)
  local self = { at = offset }
  function self.next(length)
    if tvb:len() - self.at < length then return nil end
    local range = length > 0 and tvb(self.at, length) or false
    self.at = self.at + length
    return range
  end
  function self.number(size)
    local range = self.next(size)
    return range and range:uint(), range
  end
  -- A length of `size` bytes, then so many bytes.
  function self.block(size)
    local length = self.number(size)
    if not length then return nil end
    return self.next(length)
  end
  return self
end

local function text(range, encoding)
  return range and range:string(encoding or ENC_UTF_8) or ""
end

-- Each of these returns its pieces as {field, range, value}, what to say of it, and its end; nothing
-- if more has to come.
local function read_handshake(tvb, offset)
  local read = reader(tvb, offset)
  local head = read.next(3)
  local identity = head and read.block(1)
  local required = identity ~= nil and read.block(2)
  local optional = required ~= nil and read.block(2)
  if not head or identity == nil or required == nil or optional == nil then return nil end
  local parts = {
    { fields.major, head(0, 1) }, { fields.minor, head(1, 1) }, { fields.flags, head(2, 1) },
    { fields.identity, identity, text(identity) },
    { fields.required, required, text(required) },
    { fields.optional, optional, text(optional) },
  }
  return parts, "Handshake " .. text(identity), read.at
end

local function read_frame(tvb, offset, stream)
  local read = reader(tvb, offset)
  local flags, flags_range = read.number(1)
  if not flags then return nil end
  local kind = KINDS[bit32.band(flags, 7)]
  if not kind or flags > 31 then return {}, "", tvb:len(), true end
  local size = bit32.band(flags, LARGE) ~= 0 and 4 or 1
  local parts = {
    { fields.kind, flags_range, kind }, { fields.flags, flags_range },
    { fields.large, flags_range }, { fields.continued, flags_range },
  }
  local function add(field, range, value) parts[#parts + 1] = { field, range, value } end
  if kind == "Message" then
    local sequence, range = read.number(2)
    local destination = sequence and read.block(1)
    local properties = destination ~= nil and read.block(2)
    local payload = properties ~= nil and read.block(size)
    if not sequence or destination == nil or properties == nil or payload == nil then return nil end
    add(fields.sequence, range)
    add(fields.destination, destination, text(destination))
    if properties then add(fields.properties, properties, text(properties)) end
    add(fields.length, payload, payload and payload:len() or 0)
    if payload then add(fields.payload, payload) end
    return parts, string.format("Message %d to %s", sequence, text(destination)), read.at
  end
  local id, id_range
  if kind == "Extension" then
    id, id_range = read.number(1)
    if not id then return nil end
  end
  local body = read.block(size)
  if body == nil then return nil end
  if kind == "Command" then
    add(fields.command, body, text(body))
    return parts, "Command " .. text(body), read.at
  elseif kind == "Error" then
    add(fields.error, body, text(body))
    return parts, "Error " .. text(body), read.at
  end
  local name = stream.names[id] or "?"
  add(fields.extension, id_range)
  add(fields.extension_name, id_range, name)
  if body then add(fields.payload, body) end
  if body and body:len() == 2 and (name == "ack" or name == "batch-ack") then
    add(fields.ack, body)
    return parts, "Ack " .. body:uint(), read.at
  end
  return parts, "Extension " .. name, read.at
end

-- The names of the extensions in the order of the client's last handshake, which numbers them.
local function learn_names(stream, parts)
  local names = {}
  for _, index in ipairs({ 5, 6 }) do
    for item in parts[index][3]:gmatch("[^;]+") do names[#names + 1] = item:match("^[^:]+") end
  end
  stream.names = names
end

-- Whether the frame at `offset` is a handshake: during it an ERROR frame may come instead.
local function is_handshake(tvb, offset, pinfo, stream, side)
  local key = pinfo.number .. ":" .. offset .. ":" .. side
  if handshakes[key] == nil then
    local first = tvb(offset, 1):uint()
    local due = stream[side .. "_seen"] < HANDSHAKES[side]
    handshakes[key] = due and first ~= ERROR and first ~= ERROR + LARGE
  end
  return handshakes[key]
end

function micromsg2.dissector(tvb, pinfo, tree)
  pinfo.cols.protocol = "MicroMsg2"
  local stream = stream_of(pinfo)
  local side = pinfo.src_port == stream.client and "client" or "server"
  local offset, info = 0, {}
  while offset < tvb:len() do
    local shaking = is_handshake(tvb, offset, pinfo, stream, side)
    local parts, said, after, wrong
    if shaking then
      parts, said, after = read_handshake(tvb, offset)
    else
      parts, said, after, wrong = read_frame(tvb, offset, stream)
    end
    if not parts then
      if not pinfo.visited then handshakes[pinfo.number .. ":" .. offset .. ":" .. side] = nil end
      pinfo.desegment_offset = offset
      pinfo.desegment_len = DESEGMENT_ONE_MORE_SEGMENT
      break
    end
    if shaking and not pinfo.visited then
      stream[side .. "_seen"] = stream[side .. "_seen"] + 1
      if side == "client" then learn_names(stream, parts) end
    end
    local branch = tree:add(micromsg2, tvb(offset, after - offset), "MicroMsg2 " .. said)
    if shaking then branch:add(fields.kind, "Handshake"):set_generated() end
    for _, part in ipairs(parts) do
      local field, range, value = part[1], part[2], part[3]
      if not range then
        branch:add(field, value)
      elseif value == nil then
        branch:add(field, range)
      else
        branch:add(field, range, value)
      end
    end
    if wrong then branch:add_proto_expert_info(malformed) end
    info[#info + 1] = said
    offset = after
  end
  if #info > 0 then pinfo.cols.info = table.concat(info, ", ") end
  return tvb:len()
end

DissectorTable.get("tcp.port"):add(PORT, micromsg2)
