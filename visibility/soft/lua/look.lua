-- What stands about these resources, in one view. Args: lane, res…. Each row ends with the last token that the shard gave: a claim
-- under a higher one began after this look.
local lane, out, last = ARGV[2], {now}, redis.call('GET', base .. ':seq') or '0'
for i = 3, #ARGV do
  local res = ARGV[i]
  local state = base .. ':state:' .. res
  local seen = redis.call('HMGET', state, 'gen', 'epoch', 'owner', 'nb', 'err', 'since', 'tries', 'ver', 'ev', 'built', 'hot', 'lost')
  local due = redis.call('ZSCORE', base .. ':pending:' .. lane, res)
  local claim = redis.call('ZSCORE', base .. ':claimed:' .. lane, res)
  local row = {
    redis.call('GET', base .. ':snap:' .. res) or '', redis.call('GET', base .. ':fresh:' .. res) or '0',
    visible_until(res) - now, due or '', claim or '', redis.call('PTTL', base .. ':snap:' .. res),
  }
  for j = 1, 12 do row[6 + j] = seen[j] or '' end
  row[19] = last
  out[#out + 1] = row
end
return out
