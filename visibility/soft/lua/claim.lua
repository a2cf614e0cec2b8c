-- Claim due resources, or resources by name. Args: lane, limit, lease, stay, then pairs: res, the version the caller saw ('' for any).
-- Generation and epoch are read here, before any source is (rules 5 and 3). stay: where nothing is due, note for so many ms (or until
-- the next is due within two seconds) that the caller waits for the lane's bell; below 0: it does not wait.
-- Answers now, token, due left, ms until the next is due (-1: none), ms to wait for the bell, rows, and refused:
-- {res, 'busy', owner}, {res, 'later', ms, error} or {res, 'moved', version}: a build ended since the caller looked.
local lane, limit, lease, stay = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local pending, claimed = base .. ':pending:' .. lane, base .. ':claimed:' .. lane
local due, refused = {}, {}

if #ARGV > 5 then
  for i = 6, #ARGV, 2 do
    local res, version = ARGV[i], ARGV[i + 1]
    local state = base .. ':state:' .. res
    local ends = redis.call('ZSCORE', claimed, res)
    local seen = redis.call('HMGET', state, 'owner', 'nb', 'err', 'ver')
    if ends and tonumber(ends) > now then
      redis.call('HSET', state, 'waiting', '1')
      refused[#refused + 1] = {res, 'busy', seen[1] or '0'}
    elseif seen[2] and tonumber(seen[2]) > now then
      refused[#refused + 1] = {res, 'later', tonumber(seen[2]) - now, seen[3] or ''}
    elseif version ~= '' and (seen[4] or '0') ~= version then
      refused[#refused + 1] = {res, 'moved', seen[4] or '0'}
    else
      if ends then redis.call('HINCRBY', state, 'lost', 1) end
      due[#due + 1] = res
    end
  end
else
  redis.call('DEL', base .. ':wake:' .. lane)
  for _, res in ipairs(redis.call('ZRANGEBYSCORE', claimed, '-inf', now, 'LIMIT', 0, limit)) do
    local state = base .. ':state:' .. res
    local seen = redis.call('HMGET', state, 'hot', 'forced', 'since2')
    redis.call('ZREM', claimed, res)
    redis.call('HDEL', state, 'owner', 'since2', 'window')
    -- A reader that died owes nothing.
    if seen[1] or seen[2] then
      redis.call('HINCRBY', state, 'lost', 1)
      if seen[3] then redis.call('HSETNX', state, 'since', seen[3]) end
      redis.call('ZADD', pending, 'NX', now, res)
    end
  end
  due = redis.call('ZRANGEBYSCORE', pending, '-inf', now, 'LIMIT', 0, limit)
end

local token = tick()
local rows = {}
if #due > 0 then
  local was_pending, owned, ends, begun = scores(pending, due), {}, text(now + lease), text(now)
  for _, res in ipairs(due) do
    owned[#owned + 1] = ends
    owned[#owned + 1] = res
  end
  many('ZREM', pending, due)
  many('ZADD', claimed, owned)
  redis.call('PEXPIRE', claimed, ARGV[1])
  local visible = visible_among(due)
  for n, res in ipairs(due) do
    local state = base .. ':state:' .. res
    local seen = redis.call('HMGET', state, 'gen', 'epoch', 'since', 'forced', 'tries', 'ev', 'ver', 'lost', 'tenant')
    redis.call('HSET', state, 'owner', token, 'built', begun)
    redis.call('PEXPIRE', state, ARGV[1])
    if seen[9] and seen[9] ~= '' then redis.call('ZREM', base .. ':tenant:' .. lane .. ':' .. seen[9], res) end
    rows[n] = {
      res, seen[1] or '0', seen[2] or '0', seen[3] or '0', seen[4] or '0', seen[5] or '0', seen[6] or '', seen[7] or '0',
      visible[n] > now and 1 or 0, was_pending[n] and 1 or 0, seen[8] or '0',
    }
  end
end
local next_due = redis.call('ZRANGE', pending, 0, 0, 'WITHSCORES')
local wait = next_due[2] and math.max(0, tonumber(next_due[2]) - now) or -1
local bell, busy = 0, base .. ':busy:' .. lane
if #ARGV <= 5 then
  -- Between a store and the next claim a drain holds nothing, and comes all the same.
  if #rows > 0 then redis.call('SET', busy, '1', 'PX', lease) else redis.call('DEL', busy) end
end
if #rows == 0 and #ARGV <= 5 and stay >= 0 then
  bell = wait > 0 and wait <= 2000 and wait or stay
  if bell > 0 then redis.call('SET', base .. ':lingering:' .. lane, '1', 'PX', bell + 200) end
end
return {now, token, redis.call('ZCOUNT', pending, '-inf', now), wait, bell, rows, refused}
