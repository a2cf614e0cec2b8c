-- What sessions watch. Args: ms, then groups: sid, sign ('+' or '-'), n, resource × n. A session that is gone gets none (its next beat joins it).
local ms, i = tonumber(ARGV[2]), 3
while i <= #ARGV do
  local sid, sign, n = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  local set = base .. ':interests:' .. sid
  if sign == '-' then
    for j = i + 3, i + 2 + n do redis.call('SREM', set, ARGV[j]) end
  elseif redis.call('EXISTS', base .. ':session:' .. sid) == 1 then
    for j = i + 3, i + 2 + n do redis.call('SADD', set, ARGV[j]) end
    redis.call('PEXPIRE', set, 10 * ms + 1000)
  end
  i = i + 3 + n
end
return 1
