-- Named locks by their end, the earliest first. Args: start, stop. Answers now, how many there are, then rows: name, end, owner and
-- fence ('' where it has ended), ms left (-1: no lifetime).
local index = base .. ':locks'
local out = {now, redis.call('ZCARD', index)}
local found = redis.call('ZRANGE', index, ARGV[2], ARGV[3], 'WITHSCORES')
for i = 1, #found, 2 do
  local name = base .. ':lock:' .. found[i]
  out[#out + 1] = {found[i], found[i + 1], redis.call('GET', name) or '', redis.call('PTTL', name)}
end
return out
