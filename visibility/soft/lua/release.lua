-- Drop leases. Triples: res, role, member, background_counts, linger. Answers what is left per triple, or -1 where nothing was dropped.
local out, i = {}, 2
while i <= #ARGV do
  local res, role, member, background, linger = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], tonumber(ARGV[i + 4])
  i = i + 5
  local removed = redis.call('ZREM', base .. ':' .. role .. ':' .. res, member)
  local left, ends = 0, 0
  for _, kind in ipairs({'watchers', 'holders', 'background'}) do
    if kind ~= 'background' or background == '1' then
      local set = base .. ':' .. kind .. ':' .. res
      left = left + redis.call('ZCOUNT', set, '(' .. now, '+inf')
      local last = redis.call('ZREVRANGE', set, 0, 0, 'WITHSCORES')
      if last[2] and tonumber(last[2]) > ends then ends = tonumber(last[2]) end
    end
  end
  local typ, key = split(res)
  local index = base .. ':visible:' .. typ
  local before = tonumber(redis.call('ZSCORE', index, key) or '0')
  if ends <= now then ends = now + linger end
  if before > now and ends < before then
    redis.call('ZADD', index, ends, key)
    local fresh = base .. ':fresh:' .. res
    if redis.call('PTTL', fresh) > ends - now then redis.call('PEXPIRE', fresh, ends - now) end
  end
  if removed == 0 then left = -1 end
  out[#out + 1] = left
end
return out
