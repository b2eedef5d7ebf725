-- Decides all that one request asks of one caller's budgets, in one atomic step.
--
-- A script, because read, decide and write in separate commands is a race exactly under load.
--
-- KEYS[1]  the caller: a hash with a field for each of its budgets, and the field '' with the time (ms)
--          at which the last of them can be forgotten.
-- ARGV[1]  msgpack: { quota_refuses, descriptors, charges }
--            quota_refuses  whether quota descriptors that are all over refuse (1) or never do (0)
--            descriptors    for requests with quota limits: the charges of each descriptor; else empty
--            charges        one array each, as below
-- ARGV[2..] the field of each charge.
-- Reply    { charged, now, old... }: 1 or 0, the time (us) used, and what each field held before ('' if
--          nothing). The caller runs the same transition on the same numbers and so knows the rest.
--
-- The transition is that of the engine, budget.rs, and gives the same states bit for bit. Numbers are
-- doubles, exact below 2^53; products that may pass it are kept as a quotient and a remainder of the
-- period. Nothing is ever turned into text: tostring keeps 14 digits.

local call, floor, pack, unpack_ = redis.call, math.floor, struct.pack, struct.unpack
local MAX = 9007199254740991
-- Above the rounding of two products: what is larger by this factor is larger.
local SURELY = 1 + 1e-15

-- charge: { algorithm, flags, refund, spend, units, period, burst, patience, max_wait, deepest,
--           lane_units, lane_burst, born, lasts, w... }
-- born, lasts: of a charge that is given back, when it was made (a window's number, a time), and how long
--   the bucket was to take to be empty: only what is still spent of it comes back. -1: any refund.
local ALGORITHM, FLAGS, REFUND, SPEND, UNITS, PERIOD, BURST = 1, 2, 3, 4, 5, 6, 7
local PATIENCE, MAX_WAIT, DEEPEST, LANE_UNITS, LANE_BURST, BORN, LASTS, WINDOWS = 8, 9, 10, 11, 12, 13, 14, 15
local FIXED, SLIDING, BUCKET, LEAKY = 0, 1, 2, 3
-- flags, as digits: shadow, quota, overdraft, lane, even windows, what is given back was charged to the lane
local function flag(flags, bit) return floor(flags / bit) % 2 == 1 end
local SHADOW, QUOTA, OVERDRAFT, LANE, EVEN, IN_LANE = 1, 2, 4, 8, 16, 32

local time = call('TIME')
local now = time[1] * 1000000 + time[2]

-- floor(a * n / p) and the remainder, exact for a < 2^53, n < 2^40, p < 2^45, as long as the quotient
-- stays below 2^53.
local function muldiv(a, n, p)
  local product = a * n
  if product < MAX then
    local rest = product % p
    return (product - rest) / p, rest
  end
  local b = a % p
  local whole = (a - b) / p * n
  -- b * n, seven bits of n at a time: each step stays below 2^53.
  local q, r = 0, 0
  for shift = 35, 0, -7 do
    local t = r * 128 + b * (floor(n / 2 ^ shift) % 128)
    r = t % p
    q = q * 128 + (t - r) / p
  end
  return whole + q, r
end

-- The window of `now`: number, first instant, first instant of the next.
local function window(c, at)
  if flag(c[FLAGS], EVEN) then
    local length, lead = c[WINDOWS], c[WINDOWS + 1]
    local index = at or (now + lead - (now + lead) % length) / length
    local start = index * length - lead
    return index, (start > 0 and start or 0), start + length
  end
  -- Calendar: four edges around the present, the first of window number w[1].
  local first = c[WINDOWS]
  if at and at < first then return at, c[WINDOWS + 1], c[WINDOWS + 1] end
  for i = 1, 3 do
    local starts, ends = c[WINDOWS + i], c[WINDOWS + i + 1]
    if (at and first + i - 1 == at) or (not at and now < ends) or i == 3 then
      return first + i - 1, starts, ends
    end
  end
end

-- The state at `now`: windows turned, buckets drained. Third: whether a stored time was brought back.
local function advance(c, units, used, part, at)
  local algorithm, period = c[ALGORITHM], c[PERIOD]
  local skew = period < 60000000 and period or 60000000
  if algorithm <= SLIDING then
    local index, _, ends = window(c)
    if used == 0 and part == 0 then return 0, 0, index, false end
    if at > index then
      if at == index + 1 and ends - now <= skew then return used, part, at, false end
      return used, part, index, true
    end
    local turned = index - at
    if turned == 0 then return used, part, at, false end
    if algorithm == SLIDING and turned == 1 then return 0, used, index, false end
    if algorithm == FIXED and flag(c[FLAGS], OVERDRAFT) then
      local earned = units * turned
      return (used > earned and used - earned or 0), 0, index, false
    end
    return 0, 0, index, false
  end
  if used == 0 and part == 0 then return 0, 0, now, false end
  if at > now then
    if at > now + skew then return used, part, now + skew, true end
    return used, part, at, false
  end
  local elapsed = now - at
  if elapsed * units >= (used + 1) * period * SURELY then return 0, 0, now, false end
  local whole, rest = muldiv(elapsed, units, period)
  used, part = used - whole, part - rest
  if part < 0 then used, part = used - 1, part + period end
  if used < 0 then return 0, 0, now, false end
  return used, part, now, false
end

-- Whether a cost fits an advanced state, at once or after a wait of at most `patience`.
local function fits(c, units, burst, patience, cost, used, part, at)
  local algorithm, period = c[ALGORITHM], c[PERIOD]
  if algorithm == FIXED then return used + cost <= units end
  if algorithm == SLIDING then
    local room = units - used - cost
    if room < 0 then return false end
    if part == 0 then return true end
    local _, _, ends = window(c, at)
    local left = ends - now
    if left > period then left = period end
    local q, r = muldiv(left, part, period)
    return q < room or (q == room and r == 0)
  end
  if units == 0 and cost > 0 then return false end
  -- How far over: whole units and a part of one.
  local over
  if algorithm == BUCKET then
    if cost > burst then return false end
    over = used + cost - burst
  else
    -- To a look a full queue is no debt: what waits max_wait, and its own unit.
    over = cost == 0 and used - 1 or used
  end
  if cost == 0 then
    -- A look: in debt only beyond what max_wait holds.
    patience = c[MAX_WAIT]
  end
  if over < 0 or (over == 0 and part == 0) then return true end
  if patience <= 0 then return false end
  if cost > 0 then
    local ahead = at > now and at - now or 0
    patience = patience - ahead
    if patience < 0 then return false end
  end
  if patience * units >= (over + 1) * period * SURELY then return true end
  local q, r = muldiv(patience, units, period)
  return over < q or (over == q and part <= r)
end

-- The state with units given back: of a charge, no more than is still spent of it.
local function refund(c, rate, used, part, at)
  local units = c[REFUND]
  if c[BORN] >= 0 then
    if c[ALGORITHM] <= SLIDING then
      if c[BORN] ~= at then return used, part end
    else
      local left = c[LASTS] - (now > c[BORN] and now - c[BORN] or 0)
      if left <= 0 then return used, part end
      if left * rate < (units + 1) * c[PERIOD] * SURELY then
        local spent = muldiv(left, rate, c[PERIOD])
        if spent < units then units = spent end
      end
    end
  end
  if c[ALGORITHM] <= SLIDING then return (used > units and used - units or 0), part end
  if units > used then return 0, 0 end
  return used - units, part
end

-- When the state will equal the initial one, in milliseconds, rounded up. What takes ten years is
-- forgotten then: an expiry has to fit an integer of the server's.
local TEN_YEARS = 315360000000
local function ends_at(c, units, used, part, at)
  if used == 0 and part == 0 then return floor(now / 1000) end
  local algorithm, period = c[ALGORITHM], c[PERIOD]
  if algorithm == SLIDING then
    local _, _, ends = window(c, at)
    return math.ceil((used > 0 and ends + period or ends) / 1000)
  end
  if algorithm == FIXED then
    local _, _, ends = window(c, at)
    local turns = (flag(c[FLAGS], OVERDRAFT) and units > 0) and math.ceil(used / units) or 1
    if turns > 1 then ends = ends + (turns - 1) * period end
    return math.ceil(ends / 1000)
  end
  local from = at > now and at or now
  local drains = units > 0 and (used * period + part) / units or period
  return math.ceil((from + drains) / 1000) + 1
end
local function forgotten(c, units, used, part, at)
  return math.min(ends_at(c, units, used, part, at), floor(now / 1000) + TEN_YEARS)
end

local asked = cmsgpack.unpack(ARGV[1])
local quota_refuses, descriptors, charges = asked[1], asked[2], asked[3]
local n = #charges
local fields = { '' }
for i = 1, n do fields[i + 1] = ARGV[i + 1] end
local held = call('HMGET', KEYS[1], unpack(fields))

-- What each charge would do.
local denies, base, charged, clamped, lanes = {}, {}, {}, {}, {}
for i = 1, n do
  local c = charges[i]
  local used, part, at, lane_used, lane_part, lane_at = 0, 0, 0, 0, 0, 0
  local value = held[i + 1]
  if value then
    used, part, at = unpack_('>I7I6I7', value)
    if #value >= 45 then lane_used, lane_part, lane_at = unpack_('>I7I6I7', value, 21) end
  end
  local back = false
  if flag(c[FLAGS], IN_LANE) then
    lane_used, lane_part, lane_at = advance(c, c[LANE_UNITS], lane_used, lane_part, lane_at)
    lane_used, lane_part = refund(c, c[LANE_UNITS], lane_used, lane_part, lane_at)
  else
    used, part, at, back = advance(c, c[UNITS], used, part, at)
    if c[REFUND] > 0 then used, part = refund(c, c[UNITS], used, part, at) end
  end
  clamped[i] = back
  local cost = c[SPEND]
  base[i] = { used, part, at, lane_used, lane_part, lane_at }
  charged[i] = base[i]
  denies[i] = false
  if cost >= 0 then
    local ok = fits(c, c[UNITS], c[BURST], c[PATIENCE], cost, used, part, at)
    denies[i] = not ok
    if cost > 0 then
      local sum = used + cost
      local ceiling = MAX
      if flag(c[FLAGS], OVERDRAFT) then ceiling = c[DEEPEST] > used and c[DEEPEST] or used end
      if sum > ceiling then sum = ceiling end
      charged[i] = { sum, part, at, lane_used, lane_part, lane_at }
      if not ok and flag(c[FLAGS], LANE) then
        lane_used, lane_part, lane_at, back = advance(c, c[LANE_UNITS], lane_used, lane_part, lane_at)
        clamped[i] = clamped[i] or back
        base[i] = { used, part, at, lane_used, lane_part, lane_at }
        charged[i][4], charged[i][5], charged[i][6] = lane_used, lane_part, lane_at
        if fits(c, c[LANE_UNITS], c[LANE_BURST], 0, cost, lane_used, lane_part, lane_at) then
          denies[i] = false
          local lane_sum = lane_used + cost
          charged[i] = { used, part, at, (lane_sum > MAX and MAX or lane_sum), lane_part, lane_at }
        end
      end
    end
  end
end

-- All of it, or nothing but overdraft.
local refused = false
for i = 1, n do
  local flags = charges[i][FLAGS]
  if denies[i] and not flag(flags, SHADOW) and not flag(flags, QUOTA) then refused = true end
end
local free = {}
if #descriptors > 0 then
  local any, all = false, true
  local over_in, met_in = {}, {}
  for _, members in ipairs(descriptors) do
    local quota, over = false, false
    for _, i in ipairs(members) do
      local flags = charges[i][FLAGS]
      if flag(flags, QUOTA) and not flag(flags, SHADOW) then
        quota = true
        if denies[i] then over = true end
      end
    end
    if quota then
      any = true
      if not over then all = false end
    end
    for _, i in ipairs(members) do
      met_in[i] = (met_in[i] or 0) + 1
      if over then over_in[i] = (over_in[i] or 0) + 1 end
    end
  end
  if any and all and quota_refuses == 1 then refused = true end
  for i = 1, n do free[i] = met_in[i] ~= nil and over_in[i] == met_in[i] end
end

-- What changed is written; the key lives as long as the longest-lived field that was ever seen.
local last = held[1] and unpack_('>I7', held[1]) or 0
local written, fresh, any_charged = {}, false, 0
for i = 1, n do
  local c = charges[i]
  local overdraft = flag(c[FLAGS], OVERDRAFT)
  local pay = c[SPEND] > 0 and (overdraft or (not refused and not denies[i] and not free[i]))
  if pay and not overdraft then any_charged = 1 end
  if pay or c[REFUND] > 0 or clamped[i] then
    local s = pay and charged[i] or base[i]
    local until_ = forgotten(c, c[UNITS], s[1], s[2], s[3])
    local value
    if flag(c[FLAGS], LANE) then
      local lane_until = forgotten(c, c[LANE_UNITS], s[4], s[5], s[6])
      if lane_until > until_ then until_ = lane_until end
      value = pack('>I7I6I7I7I6I7I5', s[1], s[2], s[3], s[4], s[5], s[6], math.ceil(until_ / 1000))
    elseif s[4] > 0 or s[5] > 0 then
      -- The limit has no lane at present: what its lane held is kept as long as it was to be.
      local ends = math.max(math.ceil(until_ / 1000), (unpack_('>I5', held[i + 1], 41)))
      value = pack('>I7I6I7I7I6I7I5', s[1], s[2], s[3], s[4], s[5], s[6], ends)
    else
      value = pack('>I7I6I7I5', s[1], s[2], s[3], math.ceil(until_ / 1000))
    end
    if not held[i + 1] then fresh = true end
    if until_ > last then last = until_ end
    written[#written + 1] = fields[i + 1]
    written[#written + 1] = value
  end
end
if #written > 0 then
  local now_ms = floor(now / 1000)
  if last <= now_ms then
    call('DEL', KEYS[1])
  else
    written[#written + 1] = ''
    written[#written + 1] = pack('>I7', last)
    call('HSET', KEYS[1], unpack(written))
    call('PEXPIRE', KEYS[1], last - now_ms + 1)
    -- A caller that is never idle still forgets: each new field looks at a few others.
    if fresh then
      local seconds = floor(now / 1000000)
      local some = call('HRANDFIELD', KEYS[1], 4, 'WITHVALUES')
      for i = 1, #some, 2 do
        local value = some[i + 1]
        if some[i] ~= '' and unpack_('>I5', value, #value - 4) <= seconds then
          call('HDEL', KEYS[1], some[i])
        end
      end
    end
  end
end

local reply = { (refused and 0 or 1), now }
for i = 1, n do reply[i + 2] = held[i + 1] or '' end
return reply
