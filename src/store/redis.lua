-- Decides all that one request asks of one caller's budgets, in one atomic step.
--
-- A script, because read, decide and write in separate commands is a race exactly under load.
--
-- KEYS[1]  the caller: a hash with a field for each of its budgets. A value is one state or two, and the
--          second at which it can be forgotten; the key expires at the last of these.
-- ARGV[1]  msgpack, one value after the other:
--            n              how many charges; negative if all of them are plain
--            fields         the field of each charge
--            if plain, four values for each charge: cost, units, period, and the burst or -1 where that is units
--            else
--              quota        for requests with quota limits: { refuses, the charges of each descriptor... };
--                           refuses says whether quota descriptors that are all over refuse (1) or never
--                           do (0); else 0
--              charges      seven values each, as below
-- Reply    { old..., now }: what each field held before, nil if nothing, and the time (us) used, negative if
--          the request is refused. If all held one state: the same as one string, the time in its last eight
--          bytes. The caller runs the same transition on the same numbers and so knows the rest.
--
-- The transition is that of the engine, budget.rs, and gives the same states bit for bit. Numbers are
-- doubles, exact below 2^53; products that may pass it are kept as a quotient and a remainder of the
-- period. Nothing is ever turned into text: tostring keeps 14 digits.
--
-- Most requests meet nothing but plain token buckets: some cost of some rate, nothing else. These are
-- decided in one loop, without functions and tables, for half of what the general way takes; whatever
-- is unusual goes the general way.

local call, ceil, pack, unpack_ = redis.call, math.ceil, struct.pack, struct.unpack
local MAX = 9007199254740991
-- What takes longer is forgotten then: an expiry has to fit an integer of the server's.
local TEN_YEARS = 315360000000000

local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local second = (now - now % 1000000) / 1000000
local asked = { cmsgpack.unpack(ARGV[1]) }
local n = asked[1]
local all_plain = n < 0
if all_plain then n = -n end
local held = call('HMGET', KEYS[1], unpack(asked, 2, n + 1))

-- What is written: a list of fields and values; what is gone: of fields. `known` is a second that the key
-- lives to see, `last` the one at which the longest-lived of what is written ends.
local known, last, refused, fresh, gone = 0, 0, false, false, {}
local written, w = { nil, nil, nil, nil, nil, nil, nil, nil }, 0

local plain = all_plain
if plain then
  local at_charge = n + 1
  for i = 1, n do
    local cost, units, period = asked[at_charge + 1], asked[at_charge + 2], asked[at_charge + 3]
    local burst = asked[at_charge + 4]
    if burst < 0 then burst = units end
    at_charge = at_charge + 4
    local used, part = 0, 0
    local value = held[i]
    if value then
      local at, until_then
      used, part, at, until_then = unpack_('>I7I6I7I5', value)
      local drained = (now - at) * units
      if at > now or drained >= MAX or #value > 25 then
        -- A clock that went back, a caller that comes once in ages, or a lane that was taken away.
        plain = false
        break
      end
      if until_then > known then known = until_then end
      local rest = drained % period
      used, part = used - (drained - rest) / period, part - rest
      if part < 0 then used, part = used - 1, part + period end
      if used < 0 then used, part = 0, 0 end
    else
      fresh = true
    end
    used = used + cost
    if used > burst or (used == burst and part > 0) then
      refused = true
    elseif not refused then
      local lasts = (used * period + part) / units
      local ends = ceil((now + (lasts < TEN_YEARS and lasts or TEN_YEARS)) / 1000000)
      if ends > last then last = ends end
      written[w + 1], written[w + 2] = asked[i + 1], pack('>I7I6I7I5', used, part, now, ends)
      w = w + 2
    end
  end
  if not plain then refused, fresh, known, last, w = false, false, 0, 0, 0 end
  if refused then w = 0 end
end

if not plain then
  local floor = math.floor
  -- Above the rounding of two products: what is larger by this factor is larger.
  local SURELY = 1 + 1e-15
  -- charge: algorithm, flags, spend, units, period, burst, more
  -- more: 0, or { windows, patience, max_wait, refund, born, lasts, deepest, lane_units, lane_burst }
  -- born, lasts: of a charge that is given back, when it was made (a window's number, a time), and how long
  --   the bucket was to take to be empty: only what is still spent of it comes back. -1: any refund.
  local CHARGE = 7
  local FIXED, SLIDING, BUCKET = 0, 1, 2
  local ALGORITHM, FLAGS, SPEND, UNITS, PERIOD, BURST = 1, 2, 3, 4, 5, 6
  local WINDOWS, PATIENCE, MAX_WAIT, REFUND, BORN, LASTS = 7, 8, 9, 10, 11, 12
  local DEEPEST, LANE_UNITS, LANE_BURST = 13, 14, 15
  local NOTHING = { 0, 0, 0, 0, -1, 0, 0, 0, 0 }
  -- flags, as digits: shadow, quota, overdraft, lane, even windows, what is given back was charged to the lane
  local function flag(flags, bit) return floor(flags / bit) % 2 == 1 end
  local SHADOW, QUOTA, OVERDRAFT, LANE, EVEN, IN_LANE = 1, 2, 4, 8, 16, 32

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
    local windows = c[WINDOWS]
    if flag(c[FLAGS], EVEN) then
      local length, lead = windows[1], windows[2]
      local index = at or (now + lead - (now + lead) % length) / length
      local start = index * length - lead
      return index, (start > 0 and start or 0), start + length
    end
    -- Calendar: four edges around the present, the first of window number windows[1].
    local first = windows[1]
    if at and at < first then return at, windows[2], windows[2] end
    for i = 1, 3 do
      local starts, ends = windows[i + 1], windows[i + 2]
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

  -- The second at which the state will equal the initial one, rounded up.
  local function ends_at(c, units, used, part, at)
    if used == 0 and part == 0 then return second end
    local algorithm, period = c[ALGORITHM], c[PERIOD]
    local ends
    if algorithm >= BUCKET then
      ends = (at > now and at or now) + (units > 0 and (used * period + part) / units or period)
    else
      local _
      _, _, ends = window(c, at)
      if algorithm == SLIDING then
        if used > 0 then ends = ends + period end
      elseif units > 0 and flag(c[FLAGS], OVERDRAFT) and used > units then
        ends = ends + (ceil(used / units) - 1) * period
      end
    end
    local latest = now + TEN_YEARS
    return ceil((ends < latest and ends or latest) / 1000000)
  end

  -- What each charge would do. outcome: { denied, clamped, used, part, at, sum, lane_used, lane_part,
  -- lane_at, lane_sum }; the sums are what is used once the charge is made.
  local DENIED, CLAMPED, USED, PART, AT, SUM = 1, 2, 3, 4, 5, 6
  local LANE_USED, LANE_PART, LANE_AT, LANE_SUM = 7, 8, 9, 10
  local charges, outcomes = {}, {}
  for i = 1, n do
    local c, more
    if all_plain then
      local at_charge = n + 1 + (i - 1) * 4
      local units, burst = asked[at_charge + 2], asked[at_charge + 4]
      c = { BUCKET, 0, asked[at_charge + 1], units, asked[at_charge + 3], burst < 0 and units or burst }
      more = 0
    else
      local at_charge = n + 2 + (i - 1) * CHARGE
      c = { unpack(asked, at_charge + 1, at_charge + CHARGE - 1) }
      more = asked[at_charge + CHARGE]
    end
    for j = 1, 9 do c[CHARGE - 1 + j] = more == 0 and NOTHING[j] or more[j] end
    charges[i] = c
    local flags, cost, value = c[FLAGS], c[SPEND], held[i]
    local used, part, at, clamped, denied = 0, 0, 0, false, false
    local lane_used, lane_part, lane_at, lane_sum = 0, 0, 0, 0
    if value then
      used, part, at = unpack_('>I7I6I7', value)
      if #value >= 45 then
        lane_used, lane_part, lane_at = unpack_('>I7I6I7', value, 21)
        lane_sum = lane_used
      end
      local until_then = unpack_('>I5', value, #value - 4)
      if until_then > known then known = until_then end
    end
    if flag(flags, IN_LANE) then
      lane_used, lane_part, lane_at = advance(c, c[LANE_UNITS], lane_used, lane_part, lane_at)
      lane_used, lane_part = refund(c, c[LANE_UNITS], lane_used, lane_part, lane_at)
      lane_sum = lane_used
    else
      used, part, at, clamped = advance(c, c[UNITS], used, part, at)
      if c[REFUND] > 0 then used, part = refund(c, c[UNITS], used, part, at) end
    end
    local sum = used
    if cost >= 0 then
      denied = not fits(c, c[UNITS], c[BURST], c[PATIENCE], cost, used, part, at)
      if cost > 0 then
        local ceiling = MAX
        if flag(flags, OVERDRAFT) then ceiling = c[DEEPEST] > used and c[DEEPEST] or used end
        sum = used + cost
        if sum > ceiling then sum = ceiling end
        if denied and flag(flags, LANE) then
          local back
          lane_used, lane_part, lane_at, back = advance(c, c[LANE_UNITS], lane_used, lane_part, lane_at)
          lane_sum = lane_used
          clamped = clamped or back
          if fits(c, c[LANE_UNITS], c[LANE_BURST], 0, cost, lane_used, lane_part, lane_at) then
            denied, sum = false, used
            lane_sum = lane_used + cost
            if lane_sum > MAX then lane_sum = MAX end
          end
        end
      end
    end
    outcomes[i] = { denied, clamped, used, part, at, sum, lane_used, lane_part, lane_at, lane_sum }
  end

  -- All of it, or nothing but overdraft.
  for i = 1, n do
    if outcomes[i][DENIED] then
      local flags = charges[i][FLAGS]
      if not flag(flags, SHADOW) and not flag(flags, QUOTA) then refused = true end
    end
  end
  local free = {}
  local quota = not all_plain and asked[n + 2] or 0
  if quota ~= 0 then
    local quota_refuses = quota[1]
    local any, all = false, true
    local over_in, met_in = {}, {}
    for d = 2, #quota do
      local members = quota[d]
      local counts, over = false, false
      for _, i in ipairs(members) do
        local flags = charges[i][FLAGS]
        if flag(flags, QUOTA) and not flag(flags, SHADOW) then
          counts = true
          if outcomes[i][DENIED] then over = true end
        end
      end
      if counts then
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

  -- What changed is written.
  for i = 1, n do
    local c, outcome = charges[i], outcomes[i]
    local flags, back = c[FLAGS], c[REFUND]
    local pay = c[SPEND] > 0
      and (not refused and not outcome[DENIED] and not free[i] or flag(flags, OVERDRAFT))
    if pay or outcome[CLAMPED] or back > 0 then
      local used, part, at = outcome[pay and SUM or USED], outcome[PART], outcome[AT]
      local ends, value = ends_at(c, c[UNITS], used, part, at), nil
      if flag(flags, LANE) then
        local lane_used = outcome[pay and LANE_SUM or LANE_USED]
        local lane_part, lane_at = outcome[LANE_PART], outcome[LANE_AT]
        local lane_ends = ends_at(c, c[LANE_UNITS], lane_used, lane_part, lane_at)
        if lane_ends > ends then ends = lane_ends end
        value = pack('>I7I6I7I7I6I7I5', used, part, at, lane_used, lane_part, lane_at, ends)
      elseif outcome[LANE_USED] > 0 or outcome[LANE_PART] > 0 then
        -- The limit has no lane at present: what its lane held is kept as long as it was to be.
        local lane_ends = unpack_('>I5', held[i], 41)
        if lane_ends > ends then ends = lane_ends end
        local lane_used, lane_part, lane_at = outcome[LANE_USED], outcome[LANE_PART], outcome[LANE_AT]
        value = pack('>I7I6I7I7I6I7I5', used, part, at, lane_used, lane_part, lane_at, ends)
      else
        value = pack('>I7I6I7I5', used, part, at, ends)
      end
      if ends <= second then
        gone[#gone + 1] = asked[i + 1]
      else
        if not held[i] then fresh = true end
        if ends > last then last = ends end
        written[w + 1], written[w + 2] = asked[i + 1], value
        w = w + 2
      end
    end
  end
end

if w > 0 then
  -- The key lives as long as the longest-lived field that was ever seen. Its expiry is a whole second, so
  -- that a busy caller's is not set anew at each request.
  local longer = last > known
  if longer then
    local lives = call('PTTL', KEYS[1])
    longer = lives < 0 or last * 1000 > now / 1000 + lives + 500
  end
  call('HSET', KEYS[1], unpack(written, 1, w))
  if longer then call('EXPIREAT', KEYS[1], last) end
  -- A caller that is never idle still forgets: each new field looks at a few others.
  if fresh then
    local some = call('HRANDFIELD', KEYS[1], 4, 'WITHVALUES')
    for i = 1, #some, 2 do
      local value = some[i + 1]
      if unpack_('>I5', value, #value - 4) <= second then call('HDEL', KEYS[1], some[i]) end
    end
  end
end
-- After the rest is written: a key that loses its last field loses its expiry.
if #gone > 0 then call('HDEL', KEYS[1], unpack(gone)) end

if refused then now = -now end
if plain and not fresh then
  held[n + 1] = pack('>i8', now)
  return table.concat(held)
end
held[n + 1] = now
return held
