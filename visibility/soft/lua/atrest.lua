-- Which of these are neither pending nor claimed nor waiting for another try. Args: lane, 1 for those only that are not trusted, res….
local pending, claimed, out = base .. ':pending:' .. ARGV[2], base .. ':claimed:' .. ARGV[2], {}
for i = 4, #ARGV do
  local res = ARGV[i]
  if not redis.call('ZSCORE', pending, res) and not redis.call('ZSCORE', claimed, res)
    and tonumber(redis.call('HGET', base .. ':state:' .. res, 'nb') or '0') <= now
    and (ARGV[3] == '0' or redis.call('EXISTS', base .. ':fresh:' .. res) == 0) then
    out[#out + 1] = res
  end
end
return out
