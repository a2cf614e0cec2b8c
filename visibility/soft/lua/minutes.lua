-- Args: minutes. Answers for each how often it was written, and how often it had been when it was last carried over.
local out = {}
for i = 2, #ARGV do
  out[#out + 1] = tonumber(redis.call('HGET', base .. ':m:' .. ARGV[i], '_n') or '0')
  out[#out + 1] = tonumber(redis.call('GET', base .. ':rolled:' .. ARGV[i]) or '0')
end
return out
