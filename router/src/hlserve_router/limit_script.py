"""`limit_book.settle_ask` for a Valkey (or Redis 7) server, which runs it for each ask of a message without interruption.

Line for line the rule of `limit_book`, over the same document as JSON; the server's clock is the only one. Keys: members,
epoch, then one a client. Arguments: the holder, a fresh epoch, `MEMBER_SECONDS`, `FORGET_SECONDS`,
`FORGET_BUDGET_SECONDS`, then one ask (a JSON array) a client.
"""

from typing import Final

from hlserve_router.limit_book import HOLDER_SECONDS, PERMIT_SECONDS, WINDOW_SECONDS

SCRIPT: Final = (
    f"""
local WINDOW, PERMIT, HOLDER = {WINDOW_SECONDS}, {PERMIT_SECONDS}, {HOLDER_SECONDS}
"""
    + """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local step = tonumber(time[1])
local null = cjson.null

local function div(a, b) return math.floor(a / b) end

local function period_of(kind)
  local days = div(now, 86400)
  if kind == 'Day' then return days end
  local shifted = days + 719468
  local era = div(shifted, 146097)
  local day = shifted - era * 146097
  local year = div(day - div(day, 1460) + div(day, 36524) - div(day, 146096), 365)
  local month = div(5 * (day - (365 * year + div(year, 4) - div(year, 100))) + 2, 153)
  return (year + era * 400) * 12 + month + 2
end

local function charge(window, at, requests, tokens)
  local key = string.format('%d', at)
  local row = window[key]
  if not row then row = {0, 0}; window[key] = row end
  row[1] = row[1] + requests
  row[2] = row[2] + tokens
end

local function room(book, caps)
  local taken = {0, 0, 0, book.u}
  for _, row in pairs(book.h) do
    if row[2] > now then taken[1] = taken[1] + row[1] end
  end
  for _, row in pairs(book.w) do
    taken[2] = taken[2] + row[1]
    taken[3] = taken[3] + row[2]
  end
  local left = {}
  for i = 1, 4 do
    if caps[i] ~= null then left[i] = caps[i] - taken[i] end
  end
  return left
end

local function wait(book, column, lacking)
  local steps = {}
  for at in pairs(book.w) do steps[#steps + 1] = tonumber(at) end
  table.sort(steps)
  for _, at in ipairs(steps) do
    lacking = lacking - book.w[string.format('%d', at)][column]
    if lacking <= 0 then return math.max(0, at + WINDOW - now) end
  end
  return WINDOW
end

local function blocked(book, need, caps)
  local left = room(book, caps)
  if left[1] and need[1] > math.max(0, left[1]) then return 'permits', 1, math.max(0, left[1]) end
  if left[2] and need[2] > math.max(0, left[2]) then
    return 'requests', wait(book, 1, need[2] - left[2]), math.max(0, left[2])
  end
  local alone = left[3] and left[3] >= caps[3]
  if left[3] and need[3] > math.max(0, left[3]) and not alone then
    return 'tokens', wait(book, 2, need[3] - left[3]), math.max(0, left[3])
  end
  if left[4] and need[4] > 0 and left[4] <= 0 then return 'budget', 60, 0 end
  return '', 0, 0
end

local function settle(book, ask)
  local holder, number, held, spent = ask[2], ask[3], ask[4], ask[5]
  local spent_budget, period_spent, floor, need, more, caps = ask[6], ask[7], ask[8], ask[9], ask[10], ask[11]
  book.w, book.h = book.w or {}, book.h or {}
  for at in pairs(book.w) do
    if step - tonumber(at) >= WINDOW then book.w[at] = nil end
  end
  for name, row in pairs(book.h) do
    if now - row[4] >= HOLDER then book.h[name] = nil end
  end
  local period = period_of(caps[5])
  if book.p ~= period then book.p, book.u = period, 0 end
  local mine = book.h[holder]
  if not mine then mine = {0, 0, 0, 0, {0, 0, 0, 0}}; book.h[holder] = mine end
  local repeated = mine[3] == number
  mine[2], mine[4] = now + PERMIT, now
  if repeated then return {mine[5], '', 0, 0, step, period, book.u} end
  mine[1], mine[3] = held, number
  for _, part in ipairs(spent) do
    local at = part[1] > 0 and math.min(part[1], step) or step
    if step - at < WINDOW then charge(book.w, at, part[2], part[3]) end
  end
  if period_spent == period then book.u = math.max(0, book.u, floor) + spent_budget end
  local why, seconds, left_of = blocked(book, need, caps)
  local granted = {0, 0, 0, 0}
  if why == '' then
    local left = room(book, caps)
    for i = 1, 4 do
      granted[i] = need[i] + (left[i] and math.max(0, math.min(more[i], left[i] - need[i])) or more[i])
    end
  end
  if granted[2] ~= 0 or granted[3] ~= 0 then charge(book.w, step, granted[2], granted[3]) end
  book.u = book.u + granted[4]
  mine[1] = mine[1] + granted[1]
  mine[5] = granted
  return {granted, why, seconds, left_of, step, period, book.u}
end

redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ARGV[3]))
redis.call('SET', KEYS[2], ARGV[2], 'NX')
local answers = {}
for i = 3, #KEYS do
  local ask = cjson.decode(ARGV[i + 3])
  local text = redis.call('GET', KEYS[i])
  local book = text and cjson.decode(text) or {}
  answers[#answers + 1] = cjson.encode(settle(book, ask))
  local keep = ask[11][4] ~= null and ARGV[5] or ARGV[4]
  redis.call('SET', KEYS[i], cjson.encode(book), 'EX', keep)
end
return {redis.call('ZCARD', KEYS[1]), redis.call('GET', KEYS[2]), answers}
"""
)
