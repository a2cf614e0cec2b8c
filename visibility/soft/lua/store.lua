-- Store snapshots. Args: lane, token, then per item: res, gen, epoch, ttl, soft_until, value. With a gen, no mark stood when the marks
-- were read: the claim ends with the store, unless the generation moved. Without ('') it is left to `done`.
-- Answers 0 where refused (rule 7: owner and fence), 1 stored, 2 stored and at rest (rules 5 and 3: generation, trust).
local lane, token = ARGV[2], ARGV[3]
local fence, claimed = tonumber(token), base .. ':claimed:' .. lane
local out, names, over = {}, {}, {}
for i = 4, #ARGV, 6 do names[#names + 1] = ARGV[i] end
local claims, visible = scores(claimed, names), visible_among(names)
for n, res in ipairs(names) do
  local i = 6 * n - 2
  local gen, state = ARGV[i + 1], base .. ':state:' .. res
  local seen = redis.call('HMGET', state, 'owner', 'ver', 'gen', 'epoch', 'waiting')
  out[n] = 0
  local owns = seen[1] == token and claims[n] and tonumber(claims[n]) > now
  if seen[2] == token then
    -- Sent once more after a broken connection: a token is one claim's, so it was this one that stored it.
    out[n] = owns and 1 or 2
  elseif owns and tonumber(seen[2] or '0') >= fence then
    -- The clock fell behind what it once gave (a failover): the next token is above it.
    if tonumber(seen[2]) > tonumber(tick()) then redis.call('SET', base .. ':seq', seen[2], 'PX', ARGV[1]) end
  elseif owns then
    redis.call('SET', base .. ':snap:' .. res, ARGV[i + 5], 'PX', ARGV[i + 3])
    -- The claim has renewed the lifetime of the state.
    redis.call('HSET', state, 'ver', token, 'soft', ARGV[i + 4])
    out[n] = 1
    if gen ~= '' and (seen[3] or '0') == gen then
      at_rest(res, token, (seen[4] or '0') == ARGV[i + 2] and visible[n] or 0)
      if seen[5] then baton(res, token) end
      over[#over + 1] = res
      out[n] = 2
    end
  end
end
many('ZREM', claimed, over)
return out
