-- How many live watchers some visible keys of a type have. Args: type, how many. Answers how many are visible, then counts.
local index = base .. ':visible:' .. ARGV[2]
local total = redis.call('ZCOUNT', index, '(' .. now, '+inf')
local out = {total}
local wanted = tonumber(ARGV[3])
local size = redis.call('ZCARD', index)
-- Every n-th by rank: no random order, no scan, the same load however many there are.
local step = math.max(1, math.floor(size / wanted))
for rank = 0, math.min(size - 1, step * (wanted - 1)), step do
  local found = redis.call('ZREVRANGE', index, rank, rank, 'WITHSCORES')
  if found[2] and tonumber(found[2]) > now then
    out[#out + 1] = redis.call('ZCOUNT', base .. ':watchers:' .. ARGV[2] .. ':' .. found[1], '(' .. now, '+inf')
  end
end
return out
