-- Builds claimed in a lane, by the end of their claim. Args: lane, start, stop. Answers now, how many there are, then rows: res, end, owner, begun.
local claimed = base .. ':claimed:' .. ARGV[2]
local out = {now, redis.call('ZCARD', claimed)}
local found = redis.call('ZRANGE', claimed, ARGV[3], ARGV[4], 'WITHSCORES')
for i = 1, #found, 2 do
  local seen = redis.call('HMGET', base .. ':state:' .. found[i], 'owner', 'built')
  out[#out + 1] = {found[i], found[i + 1], seen[1] or '', seen[2] or ''}
end
return out
