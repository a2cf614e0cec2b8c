-- Visible keys of a type, those longest visible first. Args: type, start, stop. Answers now, how many there are, then rows:
-- key, end of visibility, live watchers, background, holders, pending since or ''.
local index = base .. ':visible:' .. ARGV[2]
local out = {now, redis.call('ZCOUNT', index, '(' .. now, '+inf')}
local found = redis.call('ZREVRANGE', index, ARGV[3], ARGV[4], 'WITHSCORES')
for i = 1, #found, 2 do
  local res = ARGV[2] .. ':' .. found[i]
  local row = {found[i], found[i + 1]}
  for _, role in ipairs({'watchers', 'background', 'holders'}) do
    row[#row + 1] = redis.call('ZCOUNT', base .. ':' .. role .. ':' .. res, '(' .. now, '+inf')
  end
  row[#row + 1] = redis.call('HGET', base .. ':state:' .. res, 'since') or ''
  if tonumber(found[i + 1]) > now then out[#out + 1] = row end
end
return out
