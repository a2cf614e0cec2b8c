-- These resources were marked while visible: no read may trust without looking at the marks. Args: res….
for i = 2, #ARGV do
  local state = base .. ':state:' .. ARGV[i]
  redis.call('HSET', state, 'gen', tick())
  redis.call('PEXPIRE', state, ARGV[1])
  redis.call('DEL', base .. ':fresh:' .. ARGV[i])
end
return #ARGV - 1
