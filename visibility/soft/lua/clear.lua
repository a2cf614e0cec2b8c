-- Drop every lease of these resources: nobody watches or holds them from now on. Args: limit, linger, then resources. Answers per
-- resource the members dropped; at most `limit` of them a call, so call again while anything comes back.
local limit, linger, out = tonumber(ARGV[2]), tonumber(ARGV[3]), {}
for i = 4, #ARGV do
  local res = ARGV[i]
  local gone = {}
  for _, role in ipairs({'watchers', 'background', 'holders'}) do
    local set = base .. ':' .. role .. ':' .. res
    local found = redis.call('ZRANGE', set, 0, limit - #gone - 1)
    if #gone < limit and #found > 0 then
      redis.call('ZREM', set, unpack(found))
      for _, member in ipairs(found) do gone[#gone + 1] = member end
    end
  end
  local typ, key = split(res)
  if visible_until(res) > now + linger then
    redis.call('ZADD', base .. ':visible:' .. typ, now + linger, key)
    local fresh = base .. ':fresh:' .. res
    if redis.call('PTTL', fresh) > linger then redis.call('PEXPIRE', fresh, linger) end
  end
  out[#out + 1] = gone
end
return out
