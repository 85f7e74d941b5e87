-- Operator records of one kind that nobody needs any more. KEYS: hash of the kind. ARGV: field and text of each; what has changed since stays.
for i = 1, #ARGV, 2 do
  if redis.call('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] then
    redis.call('HDEL', KEYS[1], ARGV[i])
  end
end
return 0
