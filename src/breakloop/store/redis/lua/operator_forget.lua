-- Deletes operator records of one kind. KEYS: hash of the kind. ARGV: field and text of each; a record that has changed since is kept.
for i = 1, #ARGV, 2 do
  if redis.call('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] then
    redis.call('HDEL', KEYS[1], ARGV[i])
  end
end
return 0
