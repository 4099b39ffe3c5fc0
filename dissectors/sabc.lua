-- sABC in Wireshark and tshark, on TCP and on WebSocket (one message is one frame there).
--
-- On TCP the end of a frame is found as the protocol's readers find it: commands without a body end
-- at their blank line; where both sides announced `framing::length`, `content-length` counts the
-- body; otherwise a body ends at CR LF CR LF NUL or, with `msg-more::yes`, where the next frame of the
-- session begins.

local sabc = Proto("sabc", "sABC")

local PORT, WEBSOCKET_PORT = 5046, 5047
local BODIED = { MESSAGE = true, ERROR = true }
local BODYLESS = { CONNECT = true, CONNECTED = true, DISCONNECT = true, DISCONNECTING = true }
local IN_BODIES = { "MESSAGE", "DISCONNECTING", "DISCONNECT", "ERROR" }
local BLANK, MARK = "\r\n\r\n", "\r\n\r\n\0"

local NAMED = { -- headers with a field of their own
  ["client-id"] = ProtoField.string("sabc.client_id", "Client id"),
  ["session-id"] = ProtoField.string("sabc.session_id", "Session id"),
  ["session-expiry"] = ProtoField.string("sabc.session_expiry", "Session expiry"),
  ["msg-id"] = ProtoField.string("sabc.msg_id", "Message id"),
  ["ref-msg-id"] = ProtoField.string("sabc.ref_msg_id", "Answers message"),
  ["send-only"] = ProtoField.string("sabc.send_only", "Send only"),
  ["msg-more"] = ProtoField.string("sabc.msg_more", "More follows"),
  ["error-code"] = ProtoField.string("sabc.error_code", "Error code"),
}
local command = ProtoField.string("sabc.command", "Command")
local header = ProtoField.string("sabc.header", "Header")
local body = ProtoField.bytes("sabc.body", "Body")
local body_text = ProtoField.string("sabc.body.text", "Text")
local final = ProtoField.bool("sabc.final", "Ends its message")
local request = ProtoField.framenum("sabc.request_in", "Request in", base.NONE, frametype.REQUEST)
local fields = { command, header, body, body_text, final, request }
for _, field in pairs(NAMED) do fields[#fields + 1] = field end
sabc.fields = fields

local malformed = ProtoExpert.new(
  "sabc.malformed", "This is no sABC frame", expert.group.MALFORMED, expert.severity.ERROR
)
sabc.experts = { malformed }

local streams, found, lines, counts

function sabc.init()
  streams, found, lines, counts = {}, {}, {}, {}
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

local function stream_of(pinfo)
  local key = stream_key(pinfo)
  if not streams[key] then streams[key] = { announced = {}, requests = {} } end
  return streams[key]
end

-- Command and headers of the frame in `bytes` at `at`, and where its body begins; nil if the head is
-- not whole, false if it is none.
local function read_head(bytes, at)
  local blank = bytes:find(BLANK, at, true)
  local name = bytes:match("^([A-Z]+)\r\n", at)
  if not blank then
    if #bytes - at > 8300 or (bytes:find("\r\n", at, true) and not name) then return false end
    return nil
  end
  if not name or not (BODIED[name] or BODYLESS[name]) then return false end
  local headers = {}
  local block = bytes:sub(at + #name + 2, blank + 1)
  for line in block:gmatch("(.-)\r\n") do
    local key, value = line:match("^(.-)::(.*)$")
    if not key then return false end
    headers[#headers + 1] = { key = key, value = value }
    headers[key] = value
  end
  return { command = name, headers = headers, body = blank + 4 }
end

-- The bytes of an end mark at `at`: behind an empty body NUL is enough.  nil: it may still come.
local function mark_at(bytes, at, empty)
  local rest = bytes:sub(at, at + 4)
  if empty and rest:sub(1, 1) == "\0" then return 1 end
  if rest == MARK then return 5 end
  if MARK:sub(1, #rest) == rest then return nil end
  return 0
end

-- Where the next frame of this session begins in a body; nil: nowhere.
local function next_frame(bytes, at, session)
  local line = "session-id::" .. session .. "\r\n"
  local place = bytes:find(line, at, true)
  while place do
    local start
    for _, name in ipairs(IN_BODIES) do
      -- The command may stand at the end of a line of the body; other headers may stand between.
      local from = at
      while true do
        local hit = bytes:find(name .. "\r\n", from, true)
        if not hit or hit >= place then break end
        local between = bytes:sub(hit + #name + 2, place - 1)
        local valid = between:gsub("[^\r\n]-::[^\r\n]*\r\n", "") == ""
        if valid and (not start or hit < start) then start = hit end
        from = hit + 1
      end
    end
    if start and read_head(bytes, start) then return start end
    place = bytes:find(line, place + 1, true)
  end
end

-- The frame at `at` of a byte stream: its head, where its body ends, where it ends, whether a mark
-- ends it.  nil if more has to come, false if it is no frame.
local function read_stream_frame(bytes, at, stream)
  local head = read_head(bytes, at)
  if not head then return head end
  if BODYLESS[head.command] then return head, head.body, head.body, true end
  local length = head.headers["content-length"]
  if length and stream.announced.CONNECT and stream.announced.CONNECTED then
    local stop = head.body + tonumber(length)
    if stop > #bytes then return nil end
    local size = mark_at(bytes, stop, length == "0")
    if size == nil then return nil end
    return head, stop, stop + size, size > 0
  end
  if bytes:sub(head.body, head.body) == "\0" then return head, head.body, head.body + 1, true end
  if bytes:sub(head.body, head.body + 2) == "\r\n\0" then return head, head.body, head.body + 3, true end
  local mark = bytes:find(MARK, head.body, true)
  local session = head.headers["session-id"]
  if head.headers["msg-more"] == "yes" and session then
    local following = next_frame(bytes, head.body, session)
    if following and (not mark or following < mark) then return head, following, following, false end
  end
  if not mark then return nil end
  return head, mark, mark + 5, true
end

-- The request that an answer belongs to: found when the frame is seen first.
local function relate(head, pinfo, place)
  local stream, key = stream_of(pinfo), pinfo.number .. ":" .. place
  if found[key] == nil then
    found[key] = false
    if head.headers.framing == "length" then stream.announced[head.command] = true end
    local id, ref = head.headers["msg-id"], head.headers["ref-msg-id"]
    if id and head.command == "MESSAGE" then
      stream.requests[pinfo.src_port .. ":" .. id] = pinfo.number
    elseif ref then
      found[key] = stream.requests[pinfo.dst_port .. ":" .. ref] or false
    end
  end
  return found[key] or nil
end

local UTF_8 = { "[\1-\127]", "[\194-\223][\128-\191]", "[\224-\239][\128-\191][\128-\191]",
  "[\240-\244][\128-\191][\128-\191][\128-\191]" }

local function is_text(bytes)
  for at = #UTF_8, 1, -1 do bytes = bytes:gsub(UTF_8[at], "") end
  return bytes == ""
end

-- Add one frame to the tree; positions are those of Lua's strings, which begin at 1.
local function add_frame(tvb, pinfo, tree, head, first, stop, after, ends, place)
  local branch = tree:add(sabc, tvb(first - 1, after - first), "sABC " .. head.command)
  branch:add(command, tvb(first - 1, #head.command))
  local at = first + #head.command + 2
  for _, one in ipairs(head.headers) do
    local range = tvb(at - 1, #one.key + 2 + #one.value)
    branch:add(header, range, one.key .. "::" .. one.value)
    if NAMED[one.key] then branch:add(NAMED[one.key], range, one.value) end
    at = at + range:len() + 2
  end
  if stop > head.body then
    local range = tvb(head.body - 1, stop - head.body)
    branch:add(body, range)
    if is_text(range:raw()) then branch:add(body_text, range, range:string(ENC_UTF_8)) end
  end
  branch:add(final, ends):set_generated()
  local number = relate(head, pinfo, place or first)
  if number then branch:add(request, number):set_generated() end
  local id, ref = head.headers["msg-id"], head.headers["ref-msg-id"]
  local said = head.command
  if id then said = said .. " " .. id end
  if ref then said = said .. " answers " .. ref end
  if not ends then
    said = said .. (head.headers["msg-more"] == "yes" and " (more follows)" or " (no end mark)")
  end
  branch:append_text(said:sub(#head.command + 1))
  return said
end

-- Where a part ends may be known only from the frame behind it, so the parts of a message are shown when
-- the last of them is here.
local function dissect_stream(tvb, pinfo, tree)
  local bytes, stream = tvb():raw(), stream_of(pinfo)
  local at, info, parts = 1, {}, {}
  local function show()
    for _, part in ipairs(parts) do
      info[#info + 1] = add_frame(tvb, pinfo, tree, table.unpack(part))
    end
    parts = {}
  end
  while at <= #bytes do
    -- End marks of commands without a body, and line ends, may stand between frames.
    local between = bytes:match("^[\r\n%z]+", at)
    if between then
      at = at + #between
    else
      local head, stop, after, ends = read_stream_frame(bytes, at, stream)
      if head == nil then
        pinfo.desegment_offset = (parts[1] and parts[1][2] or at) - 1
        pinfo.desegment_len = DESEGMENT_ONE_MORE_SEGMENT
        return table.concat(info, ", ")
      end
      if head == false then
        show()
        tree:add(sabc, tvb(at - 1), "sABC"):add_proto_expert_info(malformed)
        info[#info + 1] = "no frame"
        return table.concat(info, ", ")
      end
      parts[#parts + 1] = { head, at, stop, after, ends }
      if ends then show() end
      at = after
    end
  end
  show()
  return table.concat(info, ", ")
end

-- One WebSocket message is one frame; a command without a body may end after its last header.
local function dissect_message(tvb, pinfo, tree, index)
  local bytes = tvb():raw()
  local whole = bytes
  if BODYLESS[bytes:match("^([A-Z]+)\r\n")] and not bytes:find(BLANK, 1, true) then
    whole = bytes .. (bytes:sub(-2) == "\r\n" and "\r\n" or BLANK)
  end
  local head = read_head(whole, 1)
  if not head then
    tree:add(sabc, tvb(), "sABC"):add_proto_expert_info(malformed)
    return "no frame"
  end
  head.body = math.min(head.body, #bytes + 1)
  local stop, ends = #bytes + 1, BODYLESS[head.command] or false
  if BODYLESS[head.command] then
    stop = head.body
  elseif bytes:match("^\r?\n?%z", head.body) then
    stop, ends = head.body, true
  elseif bytes:sub(-5) == MARK then
    stop, ends = #bytes - 4, true
  end
  return add_frame(tvb, pinfo, tree, head, 1, stop, #bytes + 1, ends, index)
end

function sabc.dissector(tvb, pinfo, tree)
  local said = dissect_stream(tvb, pinfo, tree)
  pinfo.cols.protocol = "sABC"
  if said ~= "" then pinfo.cols.info = said end
  return tvb:len()
end

-- WebSocket hands its messages to a dissector of its own, which has the same fields.
local on_websocket = Proto("sabc_ws", "sABC on WebSocket")

function on_websocket.dissector(tvb, pinfo, tree)
  local index = index_of(pinfo)
  local said = dissect_message(tvb, pinfo, tree, index)
  lines[pinfo.number] = index > 1 and lines[pinfo.number] .. ", " .. said or said
  pinfo.cols.protocol = "sABC"
  pinfo.cols.info = lines[pinfo.number]
  return tvb:len()
end

DissectorTable.get("tcp.port"):add(PORT, sabc)
DissectorTable.get("ws.protocol"):add("sabc", on_websocket)
DissectorTable.get("ws.port"):add(WEBSOCKET_PORT, on_websocket) -- for clients that name no subprotocol

-- A WebSocket begins as HTTP, on this port too; newer versions have a dissector of their own for TCP.
local known, http = pcall(Dissector.get, "http-over-tcp")
if not known or not http then http = Dissector.get("http") end
DissectorTable.get("tcp.port"):add(WEBSOCKET_PORT, http)
