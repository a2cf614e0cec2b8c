-- Note what happened to resources, the newest first. Args: length, then res, entry, res, entry, …
local last = tonumber(ARGV[2]) - 1
for i = 3, #ARGV, 2 do
  local name = base .. ':trail:' .. ARGV[i]
  redis.call('LPUSH', name, ARGV[i + 1])
  redis.call('LTRIM', name, 0, last)
  redis.call('PEXPIRE', name, ARGV[1])
end
return #ARGV
