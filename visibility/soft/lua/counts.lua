-- Args: res, limit. Answers live counts of watchers, background, holders, then up to `limit` members of each with their ends.
local res, limit = ARGV[2], tonumber(ARGV[3])
local out = {}
for _, role in ipairs({'watchers', 'background', 'holders'}) do
  local set = base .. ':' .. role .. ':' .. res
  out[#out + 1] = redis.call('ZCOUNT', set, '(' .. now, '+inf')
  out[#out + 1] = redis.call('ZRANGEBYSCORE', set, '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
end
out[#out + 1] = visible_until(res) - now
return out
