-- What waits in a lane, by due time. Args: lane, start, stop. Answers now, how many there are, then rows: res, due, since, event, tries, tenant.
local pending = base .. ':pending:' .. ARGV[2]
local out = {now, redis.call('ZCARD', pending)}
local found = redis.call('ZRANGE', pending, ARGV[3], ARGV[4], 'WITHSCORES')
for i = 1, #found, 2 do
  local seen = redis.call('HMGET', base .. ':state:' .. found[i], 'since', 'ev', 'tries', 'tenant')
  out[#out + 1] = {found[i], found[i + 1], seen[1] or '', seen[2] or '', seen[3] or '', seen[4] or ''}
end
return out
