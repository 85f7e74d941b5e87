-- Stores a pushed bundle. KEYS[1]: hash {version, digest, data, signature, forced, pushed_at, pushed_by}.
-- ARGV: version, digest, data, signature, pushed_by, "1" to force, channel to publish on.
-- Returns {"pushed" | "same" | "refused", version, digest, pushed_at, pushed_by} of the bundle that is stored afterwards.
local found = redis.call('HMGET', KEYS[1], 'version', 'digest', 'signature', 'pushed_at', 'pushed_by')
if found[1] and ARGV[6] ~= '1' then
  local old, new = tonumber(found[1]) or 0, tonumber(ARGV[1])
  if new < old or (new == old and found[2] ~= ARGV[2]) then
    return {'refused', found[1], found[2], found[4], found[5]}
  end
  if found[2] == ARGV[2] and found[3] == ARGV[4] then
    return {'same', found[1], found[2], found[4], found[5]}
  end
end
local time = redis.call('TIME')
local at = string.format('%d.%06d', time[1], time[2])
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'digest', ARGV[2], 'data', ARGV[3], 'signature', ARGV[4],
  'forced', ARGV[6], 'pushed_at', at, 'pushed_by', ARGV[5])
redis.call('PUBLISH', ARGV[7], ARGV[2])
return {'pushed', ARGV[1], ARGV[2], at, ARGV[5]}
