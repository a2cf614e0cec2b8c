-- The marks of these resources were checked and stand as the snapshot was stamped (rule 3).
-- Args: lane, then per item: res, gen, epoch, version. Answers per item 1 if trusted from now on.
local out = {}
for i = 3, #ARGV, 4 do
  local res, gen, epoch, version = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local seen = redis.call('HMGET', base .. ':state:' .. res, 'gen', 'epoch', 'ver')
  local till = visible_until(res)
  local same = (seen[1] or '') == gen and (seen[2] or '') == epoch and (seen[3] or '0') == version
  if same and till > now and redis.call('EXISTS', base .. ':snap:' .. res) == 1 then
    redis.call('SET', base .. ':fresh:' .. res, version, 'PX', till - now)
    out[#out + 1] = 1
  else
    out[#out + 1] = 0
  end
end
return out
