-- How many live leases make these resources visible. Args: pairs of res, background_counts. Answers a count each.
local out = {}
for i = 2, #ARGV, 2 do
  local res, n = ARGV[i], 0
  for _, role in ipairs({'watchers', 'holders', 'background'}) do
    if role ~= 'background' or ARGV[i + 1] == '1' then
      n = n + redis.call('ZCOUNT', base .. ':' .. role .. ':' .. res, '(' .. now, '+inf')
    end
  end
  out[#out + 1] = n
end
return out
