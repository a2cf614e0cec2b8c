-- Sessions end. Args: lease ms, keep seen ms, then pairs: user, sid. Answers per pair 1 if the user went offline by it.
-- A session that is gone already changes nothing.
local lease, seen_ms, out = tonumber(ARGV[2]), tonumber(ARGV[3]), {}
for i = 4, #ARGV, 2 do
  local user, sid = ARGV[i], ARGV[i + 1]
  local presence, hash = base .. ':presence:' .. user, base .. ':session:' .. sid
  local node = redis.call('HGET', hash, 'node')
  if node then redis.call('ZREM', base .. ':node:' .. node, sid) end
  redis.call('DEL', hash, base .. ':interests:' .. sid)
  local removed = redis.call('ZREM', presence, sid)
  local last = redis.call('ZREVRANGE', presence, 0, 0, 'WITHSCORES')
  local crossed = 0
  if removed == 1 and user ~= '-' then
    if last[2] and tonumber(last[2]) > now then
      redis.call('ZADD', base .. ':online', last[2], user)
    else
      crossed = redis.call('ZREM', base .. ':online', user)
      redis.call('SET', base .. ':seen:' .. user, text(now), 'PX', seen_ms)
    end
  end
  out[#out + 1] = crossed
end
return out
