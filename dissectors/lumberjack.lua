-- Lumberjack in Wireshark and tshark: frames of versions 1 and 2, those inside of compressed ones too.
--
-- A frame is a version byte, a type byte and a payload; integers have 32 bits in network order.

local lumberjack = Proto("lumberjack", "Lumberjack")

local PORT = 5044
local DEPTH_MAX = 3 -- compressed frames in compressed frames
local TYPES = { W = "Window", D = "Data", J = "JSON", C = "Compressed", A = "Ack" }

local fields = {
  version = ProtoField.string("lumberjack.version", "Version"),
  type = ProtoField.string("lumberjack.type", "Type"),
  window = ProtoField.uint32("lumberjack.window", "Window"),
  sequence = ProtoField.uint32("lumberjack.sequence", "Sequence"),
  length = ProtoField.uint32("lumberjack.length", "Length"),
  json = ProtoField.string("lumberjack.json", "JSON"),
  pairs = ProtoField.uint32("lumberjack.pairs", "Pairs"),
  key = ProtoField.string("lumberjack.key", "Key"),
  value = ProtoField.string("lumberjack.value", "Value"),
  inflated = ProtoField.uint32("lumberjack.inflated", "Inflated length"),
}
lumberjack.fields = fields

local malformed = ProtoExpert.new(
  "lumberjack.malformed", "This is no Lumberjack frame", expert.group.MALFORMED, expert.severity.ERROR
)
lumberjack.experts = { malformed }

-- The bytes of the D frame at `offset`; nil if some of them are missing.
local function data_length(tvb, offset)
  local left = tvb:len()
  if left < offset + 10 then return nil end
  local at = offset + 10
  for _ = 1, 2 * tvb(offset + 6, 4):uint() do
    if left < at + 4 then return nil end
    at = at + 4 + tvb(at, 4):uint()
    if left < at then return nil end
  end
  return at - offset
end

-- The bytes of the frame at `offset`; nil if more have to come, 0 if it is no frame.
local function frame_length(tvb, offset)
  local left = tvb:len() - offset
  if left < 2 then return nil end
  local version, kind = tvb(offset, 1):string(), tvb(offset + 1, 1):string()
  if (version ~= "1" and version ~= "2") or not TYPES[kind] then return 0 end
  local length
  if kind == "W" or kind == "A" then
    length = 6
  elseif kind == "J" then
    if left < 10 then return nil end
    length = 10 + tvb(offset + 6, 4):uint()
  elseif kind == "C" then
    if left < 6 then return nil end
    length = 6 + tvb(offset + 2, 4):uint()
  else
    length = data_length(tvb, offset)
  end
  if not length or left < length then return nil end
  return length
end

-- The contents of a zlib stream, or nil.  The method's name has changed between versions of Wireshark.
local function inflate(range)
  for _, name in ipairs({ "uncompress_zlib", "uncompress" }) do
    local ok, inflated = pcall(function() return range[name](range, "Inflated") end)
    if ok and inflated then return inflated end
  end
  return nil
end

local dissect_frames

local function dissect_pairs(tvb, offset, tree)
  local count = tvb(offset, 4):uint()
  tree:add(fields.pairs, tvb(offset, 4))
  local at = offset + 4
  for _ = 1, count do
    for _, field in ipairs({ fields.key, fields.value }) do
      local length = tvb(at, 4):uint()
      tree:add(field, tvb(at + 4, length), tvb(at + 4, length):string(ENC_UTF_8))
      at = at + 4 + length
    end
  end
end

local function dissect_frame(tvb, offset, length, pinfo, tree, info, depth)
  local kind = tvb(offset + 1, 1):string()
  local branch = tree:add(lumberjack, tvb(offset, length), "Lumberjack " .. TYPES[kind])
  branch:add(fields.version, tvb(offset, 1))
  branch:add(fields.type, tvb(offset + 1, 1))
  local number = tvb(offset + 2, 4)
  if kind == "W" then
    branch:add(fields.window, number)
  elseif kind ~= "C" then
    branch:add(fields.sequence, number)
  else
    branch:add(fields.length, number)
  end
  if kind == "J" then
    branch:add(fields.length, tvb(offset + 6, 4))
    local body = tvb(offset + 10, length - 10)
    branch:add(fields.json, body, body:string(ENC_UTF_8))
  elseif kind == "D" then
    dissect_pairs(tvb, offset + 6, branch)
  end
  if kind ~= "C" then
    branch:append_text(", " .. number:uint())
    info[#info + 1] = kind .. " " .. number:uint()
    return
  end
  local inflated = length > 6 and depth < DEPTH_MAX and inflate(tvb(offset + 6, length - 6))
  if not inflated then
    branch:add_proto_expert_info(malformed, "This cannot be inflated")
    return
  end
  local inner = inflated:tvb()
  branch:add(fields.inflated, inner:len()):set_generated()
  dissect_frames(inner, pinfo, branch, info, depth + 1)
end

-- Dissect whole frames; returns where the first that is not whole begins.
function dissect_frames(tvb, pinfo, tree, info, depth)
  local offset = 0
  while offset < tvb:len() do
    local length = frame_length(tvb, offset)
    if not length then return offset end
    if length == 0 then
      tree:add_proto_expert_info(malformed)
      return tvb:len()
    end
    dissect_frame(tvb, offset, length, pinfo, tree, info, depth)
    offset = offset + length
  end
  return offset
end

function lumberjack.dissector(tvb, pinfo, tree)
  pinfo.cols.protocol = "Lumberjack"
  local info = {}
  local offset = dissect_frames(tvb, pinfo, tree, info, 0)
  if offset < tvb:len() then
    pinfo.desegment_offset = offset
    pinfo.desegment_len = DESEGMENT_ONE_MORE_SEGMENT
  end
  if #info > 6 then info = { info[1], info[2], "…", info[#info - 1], info[#info] } end
  if #info > 0 then pinfo.cols.info = table.concat(info, ", ") end
  return tvb:len()
end

DissectorTable.get("tcp.port"):add(PORT, lumberjack)
