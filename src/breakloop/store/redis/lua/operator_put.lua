-- Stores operator records of one kind; of each, the newest is kept. KEYS: hash of the kind, version. ARGV: channel, then field and text of each; a text begins with its time of change in seconds.
-- Returns the version, then the texts of records that are newer in Redis.
local function changed_at(text)
  return tonumber(string.match(text, '^%[([%d%.eE+-]+)'))
end

local newer, taken = {}, {}
for i = 2, #ARGV, 2 do
  local field, text = ARGV[i], ARGV[i + 1]
  local known = redis.call('HGET', KEYS[1], field)
  local at = known and changed_at(known)
  if not at or at < changed_at(text) then
    redis.call('HSET', KEYS[1], field, text)
    taken[#taken + 1] = text
  elseif known ~= text then
    newer[#newer + 1] = known
  end
end

local version = tonumber(redis.call('GET', KEYS[2]) or 0) or 0
if #taken > 0 then
  -- If the version was lost with its data, it restarts at the current time, so that no earlier version is used again.
  version = version > 0 and version + 1 or tonumber(redis.call('TIME')[1]) * 1000
  local told = string.format('%.0f', version)
  redis.call('SET', KEYS[2], told)
  redis.call('PUBLISH', ARGV[1], told .. '\n' .. table.concat(taken, '\n'))
end

local answer = {version}
for i = 1, #newer do
  answer[i + 1] = newer[i]
end
return answer
