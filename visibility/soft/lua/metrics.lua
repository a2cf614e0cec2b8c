-- Add counts to the minute that was `age` minutes ago, and to the totals; both keys get their lifetime here.
-- ARGV: age, minute ttl (s), totals ttl (s), then field, n, field, n, …
local base = KEYS[1]
local minute = math.floor(tonumber(redis.call('TIME')[1]) / 60) - tonumber(ARGV[1])
local by_minute = base .. ':m:' .. string.format('%d', minute)
local totals = base .. ':totals'
for i = 4, #ARGV, 2 do
    redis.call('HINCRBY', by_minute, ARGV[i], ARGV[i + 1])
    redis.call('HINCRBY', totals, ARGV[i], ARGV[i + 1])
end
-- How often this minute was written: tells a rollup that nothing came since it looked.
redis.call('HINCRBY', by_minute, '_n', 1)
redis.call('EXPIRE', by_minute, ARGV[2])
redis.call('EXPIRE', totals, ARGV[3])
return minute
