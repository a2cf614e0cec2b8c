-- How many members of these sorted sets of times lie further back than so many ms. Args: ms, then roles with their names.
local out = {}
for i = 3, #ARGV do
  out[#out + 1] = redis.call('ZCOUNT', base .. ':' .. ARGV[i], '-inf', now - tonumber(ARGV[2]))
end
return out
