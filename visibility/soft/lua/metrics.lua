-- Add counts to the minute that was `age` minutes ago, and to the totals; both keys get their lifetime here.
-- Args: age, minute ttl (s), totals ttl (s), then field, n, field, n, …
local minute = math.floor(tonumber(clock[1]) / 60) - tonumber(ARGV[2])
local by_minute = base .. ':m:' .. text(minute)
local totals = base .. ':totals'
for i = 5, #ARGV, 2 do
  redis.call('HINCRBY', by_minute, ARGV[i], ARGV[i + 1])
  redis.call('HINCRBY', totals, ARGV[i], ARGV[i + 1])
end
-- How often this minute was written: tells a rollup whether anything came since it looked.
redis.call('HINCRBY', by_minute, '_n', 1)
redis.call('EXPIRE', by_minute, ARGV[3])
redis.call('EXPIRE', totals, ARGV[4])
return minute
