-- Put resources into a lane. Args: lane, bound, share, tenant_rate, tenant_burst, then per item:
-- res, since, event, mode, front_window, hidden_window, tenant. Answers accepted, merged, wake, then (index, reason) of the shed.
-- mode: 0 changed, 1 changed and to be built though nobody watches, 2 nothing changed, build it anew (what stands may be served).
local lane, bound, share = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local rate, burst = tonumber(ARGV[5]), tonumber(ARGV[6])
local pending, claimed = base .. ':pending:' .. lane, base .. ':claimed:' .. lane
local size = redis.call('ZCARD', pending) + redis.call('ZCARD', claimed)
local accepted, merged, due_soon, shed = 0, 0, false, {}

local function alive(role, res)
  local last = redis.call('ZREVRANGE', base .. ':' .. role .. ':' .. res, 0, 0, 'WITHSCORES')
  return last[2] and tonumber(last[2]) > now
end

local function tenant_refuses(tenant)
  if tenant == '' then return nil end
  if share < bound and redis.call('ZCARD', base .. ':tenant:' .. lane .. ':' .. tenant) >= share then return 'share' end
  if rate <= 0 then return nil end
  local bucket = base .. ':bucket:' .. tenant
  local level, at = unpack(redis.call('HMGET', bucket, 'level', 'at'))
  level = math.min(burst, tonumber(level or burst) + (now - tonumber(at or now)) * rate / 1000)
  if level < 1 then return 'tenant' end
  redis.call('HSET', bucket, 'level', tostring(level - 1), 'at', text(now))
  redis.call('PEXPIRE', bucket, KEEP)
  return nil
end

local n = 0
for i = 7, #ARGV, 7 do
  n = n + 1
  local res, since, event, mode, front, hidden, tenant =
    ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2], ARGV[i + 3], tonumber(ARGV[i + 4]), tonumber(ARGV[i + 5]), ARGV[i + 6]
  local state = base .. ':state:' .. res
  local is_pending = redis.call('ZSCORE', pending, res)
  local is_claimed = redis.call('ZSCORE', claimed, res)
  if is_claimed and tonumber(is_claimed) <= now then
    -- Its owner is gone; what was behind its claim waits again.
    local owed = redis.call('HMGET', state, 'hot', 'forced', 'since2')
    redis.call('ZREM', claimed, res)
    redis.call('HDEL', state, 'owner', 'since2', 'window')
    is_claimed, size = false, size - 1
    if owed[1] or owed[2] then
      redis.call('HINCRBY', state, 'lost', 1)
      if owed[3] then redis.call('HSETNX', state, 'since', owed[3]) end
      redis.call('ZADD', pending, now, res)
      is_pending, size = text(now), size + 1
    end
  end
  local reason = nil
  if not is_pending and not is_claimed then
    if size >= bound then reason = 'bound' else reason = tenant_refuses(tenant) end
  end
  if reason then
    shed[#shed + 1] = n
    shed[#shed + 1] = reason
  else
    accepted = accepted + 1
    if mode ~= '0' then redis.call('HSET', state, 'forced', '1') end
    if mode ~= '2' then
      redis.call('HSET', state, 'gen', tick(), 'hot', '1', 'ev', event)
      redis.call('HSETNX', state, is_claimed and 'since2' or 'since', text(since))
      redis.call('DEL', base .. ':fresh:' .. res)
    elseif is_claimed then
      -- The build under way may have read too early.
      redis.call('HSET', state, 'gen', tick())
    end
    redis.call('PEXPIRE', state, KEEP)
    local window = front
    if hidden > front and mode == '0' and not alive('watchers', res) and not alive('holders', res) then window = hidden end
    local seen = redis.call('HMGET', state, 'built', 'nb', 'window')
    if is_claimed then
      merged = merged + 1
      if not seen[3] or tonumber(seen[3]) > window then redis.call('HSET', state, 'window', window) end
    else
      local due = math.max(now, tonumber(seen[1] or '0') + window, tonumber(seen[2] or '0'))
      if is_pending then
        merged = merged + 1
        redis.call('ZADD', pending, 'LT', due, res)
      else
        size = size + 1
        redis.call('ZADD', pending, due, res)
        -- It counts for the tenant that put it here, until it is claimed.
        redis.call('HSET', state, 'tenant', tenant)
        if tenant ~= '' then
          redis.call('ZADD', base .. ':tenant:' .. lane .. ':' .. tenant, due, res)
          redis.call('PEXPIRE', base .. ':tenant:' .. lane .. ':' .. tenant, KEEP)
        end
      end
      if due < now + 2000 then due_soon = true end
    end
  end
end
if accepted > 0 then redis.call('PEXPIRE', pending, KEEP) end
local woke = 0
if due_soon then woke = wake(lane) end
return {accepted, merged, woke, shed}
