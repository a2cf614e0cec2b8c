-- Users online, those heard last first. Args: start, stop. Answers now, how many there are, then rows: user, end of the last lease, sessions.
local online = base .. ':online'
local out = {now, redis.call('ZCOUNT', online, '(' .. now, '+inf')}
local found = redis.call('ZREVRANGE', online, ARGV[2], ARGV[3], 'WITHSCORES')
for i = 1, #found, 2 do
  if tonumber(found[i + 1]) > now then
    local sessions = redis.call('ZCOUNT', base .. ':presence:' .. found[i], '(' .. now, '+inf')
    out[#out + 1] = {found[i], found[i + 1], sessions}
  end
end
return out
