-- Which of these keys of a type are visible. Args: type, key…
local index, out = base .. ':visible:' .. ARGV[2], {}
for i = 3, #ARGV do
  local score = redis.call('ZSCORE', index, ARGV[i])
  if score and tonumber(score) > now then out[#out + 1] = ARGV[i] end
end
return out
