-- Pop users whose last lease has ended: whoever pops one announces it. Args: limit, lease ms, keep seen ms.
local online, out = base .. ':online', {}
local found = redis.call('ZRANGEBYSCORE', online, '-inf', now, 'WITHSCORES', 'LIMIT', 0, tonumber(ARGV[2]))
for i = 1, #found, 2 do
  local user, ended = found[i], tonumber(found[i + 1])
  local last = redis.call('ZREVRANGE', base .. ':presence:' .. user, 0, 0, 'WITHSCORES')
  if last[2] and tonumber(last[2]) > now then
    redis.call('ZADD', online, last[2], user)
  else
    redis.call('ZREM', online, user)
    redis.call('SET', base .. ':seen:' .. user, text(ended - tonumber(ARGV[3])), 'PX', tonumber(ARGV[4]))
    out[#out + 1] = user
  end
end
return out
