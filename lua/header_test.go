package lua

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// header is what stands above a script's body.
type header struct {
	keys, argv, writes []span
	nothing            bool // Writes nothing
	returns            []form
	source             string
}

// form is one that a reply can have: so many values, and so many for each rule.
type form struct{ values, each int }

// span is some of the places of KEYS or ARGV: from..to as they stand in the
// header, or from.. with so many for each rule.
type span struct {
	from, to string
	each     int
}

var (
	titleLine = regexp.MustCompile(`^-- ([a-z_]+): \S.*`)
	placeLine = regexp.MustCompile(`^-- (KEYS|ARGV)\[(\w[^\].]*)(\.\.([^\]]*))?\] +(\w+) +(\S.*)`)
	wordLine  = regexp.MustCompile(`^-- (Returns|Writes|Source) +(\S.*)`)
	keyToken  = regexp.MustCompile(`KEYS\[(\w[^\].]*)(?:\.\.([^\]]*))?\]`)
	eachRule  = regexp.MustCompile(`(?:(\w+) )?for each (?:rule|task|word|of s scopes)`)
	numbers   = map[string]int{"two": 2, "three": 3, "four": 4, "five": 5, "seven": 7}
)

// readHeader reads a script's header, and says everything that is wrong with it.
func readHeader(name, text string) (header, []string) {
	var h header
	var faults []string
	fault := func(line int, format string, args ...any) {
		faults = append(faults, fmt.Sprintf("%s.lua:%d: ", name, line)+fmt.Sprintf(format, args...))
	}
	seen := map[string]bool{}
	word := ""
	for i, line := range strings.Split(text, "\n") {
		if i == 0 {
			if m := titleLine.FindStringSubmatch(line); m == nil || m[1] != name {
				fault(1, "the first line is %q; want \"-- %s: what it does.\"", line, name)
			}
			continue
		}
		if line == "" {
			break
		}
		if m := placeLine.FindStringSubmatch(line); m != nil {
			s := span{from: m[2], to: m[4]}
			if s.to == "" && m[3] == "" {
				s.to = s.from
			}
			if s.to == "" {
				each := eachRule.FindStringSubmatch(m[6])
				if each == nil {
					fault(i+1, "%s[%s..] does not say how many for each rule", m[1], s.from)
				} else {
					s.each = cmp.Or(numbers[each[1]], 1)
				}
			}
			if m[1] == "KEYS" {
				h.keys = append(h.keys, s)
			} else {
				h.argv = append(h.argv, s)
			}
			continue
		}
		rest := strings.TrimSpace(strings.TrimPrefix(line, "--"))
		if m := wordLine.FindStringSubmatch(line); m != nil {
			word, rest = m[1], m[2]
			if seen[word] {
				fault(i+1, "%s twice", word)
			}
			seen[word] = true
		} else if !strings.HasPrefix(line, "--  ") {
			word = ""
		}
		switch word {
		case "Returns":
			h.readReturns(rest)
		case "Writes":
			h.nothing = h.nothing || strings.HasPrefix(rest, "nothing.")
			for _, m := range keyToken.FindAllStringSubmatch(rest, -1) {
				h.writes = append(h.writes, span{from: m[1], to: cmp.Or(m[2], m[1])})
			}
		case "Source":
			h.source = rest
		}
	}
	for _, word := range []string{"Returns", "Writes", "Source"} {
		if !seen[word] {
			fault(1, "the header has no %s", word)
		}
	}
	if len(h.keys) == 0 || len(h.argv) == 0 {
		fault(1, "the header has no KEYS or no ARGV")
	}
	return h, faults
}

// readReturns counts the names in "{a, b, then five for each rule".
func (h *header) readReturns(line string) {
	names, braced := strings.CutPrefix(line, "{")
	if !braced {
		return
	}
	var f form
	if strings.HasPrefix(names, "one for each ") {
		names = "then " + names
	}
	names, each, then := strings.Cut(names, "then ")
	each, last, _ := strings.Cut(each, ", then ")
	names, _, _ = strings.Cut(names+","+last, "}")
	for name := range strings.SplitSeq(names, ",") {
		if strings.TrimSpace(name) != "" {
			f.values++
		}
	}
	if m := eachRule.FindStringSubmatch(each); then && m != nil {
		f.each = cmp.Or(numbers[m[1]], 1)
	}
	h.returns = append(h.returns, f)
}

// places writes out spans for n rules: KEYS[1], KEYS[2], …
func places(t *testing.T, name string, spans []span, n int) []string {
	t.Helper()
	at := func(text string) int {
		sum := 0
		for term := range strings.SplitSeq(text, "+") {
			i := n
			if term != "n" && term != "s" { // the histories have as many scopes as rules
				var err error
				if i, err = strconv.Atoi(term); err != nil {
					t.Fatalf("%s[%s]: %v", name, text, err)
				}
			}
			sum += i
		}
		return sum
	}
	var out []string
	for _, s := range spans {
		from := at(s.from)
		to := from + s.each*n - 1
		if s.each == 0 {
			to = at(s.to)
		}
		for i := from; i <= to; i++ {
			out = append(out, fmt.Sprintf("%s[%d]", name, i))
		}
	}
	return out
}

// watched is a script that tells what it read and wrote: {reply, places read,
// keys written, faults}.
func watched(source string) string {
	return `
local real_keys, real_argv, real = KEYS, ARGV, redis
local KEYS_N, ARGV_N, seen, wrote, faults = #KEYS, #ARGV, {}, {}, {}
local reads = { TIME = 1, GET = 1, PTTL = 1, ZCOUNT = 1, ZSCORE = 1, ZCARD = 1, ZRANGEBYSCORE = 1, ZREVRANGEBYSCORE = 1, HMGET = 1, HSCAN = 1, EXISTS = 1, HGET = 1, MGET = 1,
  HGETALL = 1, HEXISTS = 1, ZRANGE = 1, ZRANK = 1, ZRANGEBYLEX = 1 }
local function watch(name, t)
  return setmetatable({}, { __index = function(_, i)
    seen[name .. '[' .. i .. ']'] = true
    return t[i]
  end })
end
local KEYS, ARGV = watch('KEYS', KEYS), watch('ARGV', ARGV)
local function KEYS_FROM(from, to)
  for i = from, to do
    seen['KEYS[' .. i .. ']'] = true
  end
  return unpack(real_keys, from, to)
end
local function KEYS_ALL()
  for i = 1, KEYS_N do
    seen['KEYS[' .. i .. ']'] = true
  end
  return unpack(real_keys)
end
local function run(call, command, ...)
  local key = ...
  for i, a in ipairs({ ... }) do
    if type(a) ~= 'string' and not (type(a) == 'number' and a % 1 == 0 and a >= 0 and a < 1000000) then
      faults[#faults + 1] = command .. ' got a ' .. type(a) .. ' as argument ' .. i
    end
  end
  if not reads[command] then
    for i, k in ipairs(real_keys) do
      if k == key then wrote['KEYS[' .. i .. ']'] = true end
    end
  end
  return call(command, ...)
end
local redis = {
  call = function(...) return run(real.call, ...) end,
  pcall = function(...) return run(real.pcall, ...) end,
}
local function script()
` + strings.NewReplacer("unpack(KEYS)", "KEYS_ALL()", "unpack(KEYS, ", "KEYS_FROM(", "#KEYS", "KEYS_N", "#ARGV", "ARGV_N").Replace(source) + `
end
local function list(set)
  local out = {}
  for k in pairs(set) do out[#out + 1] = k end
  return out
end
return { script(), list(seen), list(wrote), faults }
`
}

// run is one call of a script in a history that has it do all it can.
type run struct {
	script *Script
	keys   []string
	args   []any
}

// histories calls each script so that together all its branches are taken: n
// rules of all kinds, allowed, denied, repeated, given back, twice.
func histories(prefix string) (runs []run, n int) {
	const now = 1_800_057_600_000_000
	state := []string{prefix + ":t", prefix + ":s", prefix + ":f", prefix + ":c"}
	attempt := func(id string) []string { return append(slices.Clone(state), prefix+"@"+id) }
	rules := func(back bool, cost int, first ...any) []any {
		for i, r := range []string{
			Rule('T', [4]int64{1, 10_000_000, 3}), Rule('S', [4]int64{5, 60_000_000, 1}),
			Rule('S', [4]int64{9, 0, 60_000_000, 5000}), Rule('C', [4]int64{4, 60_000_000}),
		} {
			first = append(first, r, cost)
			if back {
				first = append(first, []any{now, now, now, 0}[i], 0, 0)
			}
		}
		return first
	}
	decide := func(id string, cost, at, ahead int) run {
		return run{Decide, append(attempt(id), prefix+"!upstream"), rules(false, cost, at, id, fmt.Sprint(ahead, "/a"))}
	}
	giveBackOf := func(id string) run {
		keys := append(attempt("mark"+id), prefix+"@"+id, prefix+"@"+id+"=", prefix+"!schedule", prefix+"!meta")
		return run{Settle, keys, rules(true, 1, now, id, "", now+60_000_000, 60_000, 0)}
	}
	giveBack := giveBackOf("a")
	settle := func(id, call string, spent int) run {
		keys := append(slices.Clone(state[:3]), prefix+":u", prefix+"@"+id, prefix+"@"+id, prefix+"@"+id+"=", prefix+"!schedule", prefix+"!meta")
		args := []any{now, id, call, now + 60_000_000, 60_000, 0}
		args = append(append(args, rules(true, 2)[:15]...), rules(true, 2)[:5]...)
		for i := 10; i < len(args); i += 5 {
			args[i] = spent
		}
		return run{Settle, keys, args}
	}
	release := run{Release, []string{state[3], prefix + "!runs:c", prefix + "!schedule", prefix + "!meta"}, []any{now, "b", 1_500_000}}
	peek := func(at int) run {
		return run{Decide, append(attempt("e"), prefix+"!upstream"), rules(false, 1, at, "e", "?/a")}
	}
	tell := func(words ...any) run {
		return run{ReportUpstream, []string{prefix + "!upstream", prefix + "!schedule", prefix + "!meta"}, append([]any{now}, words...)}
	}
	reset := run{Reset, []string{state[0], state[1], state[2], prefix + ":k", prefix + "!schedule", prefix + "!meta"}, []any{
		now, Rule('T', [4]int64{1, 10_000_000, 3}), Rule('S', [4]int64{5, 60_000_000, 1}), Rule('S', [4]int64{9, 0, 60_000_000, 5000}),
		Rule('K', [4]int64{9, now, now + 60_000_000, now + 120_000_000}, 0, 0, 0, now-60_000_000, now+180_000_000),
	}}
	return []run{
		decide("a", 1, now, 0), decide("a", 1, now, 0), decide("b", 2, now, 0), decide("c", 1, now, 0),
		decide("d", 1, now, 20_000_000), peek(now), peek(now + 60_000_000),
		giveBack, giveBack,
		settle("a", "1", 2), settle("c", "1", 1), settle("c", "1", 1), settle("c", "2", 20), settle("c", "3", 3), giveBackOf("c"), settle("c", "4", 2),
		{Renew, state[3:], []any{now, "b", 60_000_000}}, {Renew, state[3:], []any{now, "gone", 60_000_000}},
		release, release,
		{Heartbeat, []string{prefix + ":members"}, []any{now, "m", 60_000_000}}, {Heartbeat, []string{prefix + ":members"}, []any{"", "m", 0}},
		tell("pause", "/a", 1_000_000, 0, 0, 0, 0), tell("rest", "/b", 1_000_000, 60_000_000, 500_000, 0, 0), decide("p", 1, now, 0), peek(now),
		tell("lift", "/a", 0, 0, 0, 0, 0), tell("lift", "/b", 0, 0, 0, 0, 0),
		tell("cut", ":t", 500_000, 1_000_000, 20_000, 100_000, 3_000_000), tell("adopt", ":s", 2, 60_000_000, 60_000_000, 0, 0), decide("q", 1, now, 0),
		tell("rise", ":t", 3_000_000, 20_000, 60_000_000, 0, 0), tell("adopt", ":s", 0, 0, 0, 0, 0), tell("free", ":t", 0, 0, 0, 0, 0),
		reset, reset,
	}, len(state)
}

// Every script starts with a header that says what its KEYS and ARGV are, what
// it returns and what it writes; here the header is held against what the script
// does: it reads the places that it declares and no others, writes the keys that
// it says and no others, and returns as many values as it says. Numbers that it
// hands to Redis are text already.
func TestHeaders(t *testing.T) {
	t.Parallel()
	clients := map[string]redis.UniversalClient{"redis": redistest.Client(t)}
	_, clients["miniredis"] = redistest.Miniredis(t)
	for name, rdb := range clients {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			prefix := redistest.Prefix(t)
			runs, n := histories(prefix)
			waitFor(t, rdb, prefix)
			runs = append(append(waitingRuns(prefix+"-waiting"), runs...), releaseRuns(t, rdb, prefix, n)...)
			runs = append(runs, append(parkRuns(t, rdb, prefix, n), takeRuns(t, rdb, prefix, n)...)...)
			runs = append(runs, keepRuns(t, rdb, prefix, n)...)
			runs = append(runs, manyRuns(prefix+"-many")...)
			runs = append(runs, repairRuns(t, rdb, prefix+"-repair", n)...)
			read, wrote := map[string]map[string]bool{}, map[string]map[string]bool{}
			for _, s := range every() {
				read[s.Name], wrote[s.Name] = map[string]bool{}, map[string]bool{}
			}
			for i, r := range runs {
				reply, err := rdb.Eval(context.Background(), watched(r.script.Source()), r.keys, r.args...).Slice()
				if err != nil {
					t.Fatalf("run %d, %s: %v", i, r.script.Name, err)
				}
				add(read[r.script.Name], reply[1])
				add(wrote[r.script.Name], reply[2])
				for _, fault := range reply[3].([]any) {
					t.Errorf("run %d, %s: %v", i, r.script.Name, fault)
				}
				h := headerOf(t, r.script)
				rules := len(r.keys)
				switch r.script {
				case Decide, Reset:
					rules -= 2
				case ReportUpstream:
					rules = (len(r.args) - 1) / 5
				case Release:
					rules -= 2
				case DecideQueued:
					rules -= 9
				case Join, Inspect:
					rules = 4
				case Settle:
					rules -= 5
				case ReleaseTasks:
					rules -= 6
				case TakeTasks:
					rules -= 5
				case DeferTasks:
					rules -= 2
				case KeepLeases:
					rules = len(r.args) / 2
				}
				got := values(reply[0])
				if r.script == DecideMany { // bytes, which throttle reads
					continue
				}
				if !slices.ContainsFunc(h.returns, func(f form) bool { return got == f.values+f.each*rules }) {
					t.Errorf("run %d, %s returns %d values, its header says %v", i, r.script.Name, got, h.returns)
				}
			}
			for _, s := range every() {
				h, rules := headerOf(t, s), n
				switch s {
				case Renew, Release, Heartbeat, ReportUpstream:
					rules = 1
				}
				declared := append(places(t, "KEYS", h.keys, rules), places(t, "ARGV", h.argv, rules)...)
				same(t, s.Name+".lua declares what it reads", read[s.Name], declared)
				same(t, s.Name+".lua writes what it says", wrote[s.Name], places(t, "KEYS", h.writes, rules))
				if h.nothing != (len(h.writes) == 0) {
					t.Errorf("%s.lua: Writes says both nothing and something", s.Name)
				}
			}
		})
	}
}

func headerOf(t *testing.T, s *Script) header {
	t.Helper()
	text, err := os.ReadFile(s.path + ".lua")
	if err != nil {
		t.Fatal(err)
	}
	h, faults := readHeader(s.Name, string(text))
	for _, fault := range faults {
		t.Error(fault)
	}
	return h
}

func add(set map[string]bool, list any) {
	for _, one := range list.([]any) {
		set[one.(string)] = true
	}
}

// values returns how many values a reply has, 0 for a single number.
func values(reply any) int {
	list, _ := reply.([]any)
	return len(list)
}

func same(t *testing.T, what string, got map[string]bool, want []string) {
	t.Helper()
	for _, place := range want {
		if !got[place] {
			t.Errorf("%s: %s is not touched", what, place)
		}
		delete(got, place)
	}
	for place := range got {
		t.Errorf("%s: %s is not declared", what, place)
	}
}

// A header with a mistake is told where.
func TestHeaderFaults(t *testing.T) {
	t.Parallel()
	good := "-- x: do it.\n--\n-- KEYS[1..n]  rule  a\n-- ARGV[1]  clock  b\n-- ARGV[2..]  rest  six for each rule\n--\n" +
		"-- Returns  {a, b, then five for each rule:\n--           c}\n-- Writes   nothing.\n-- Source   docs/a.md#b\n\nreturn {}\n"
	tests := map[string]struct{ from, to, want string }{
		"good":     {"", "", ""},
		"title":    {"-- x: do", "-- y: do", `x.lua:1: the first line is "-- y: do it."; want "-- x: what it does."`},
		"returns":  {"Returns", "Replies", "x.lua:1: the header has no Returns"},
		"writes":   {"Writes ", "Wrote ", "x.lua:1: the header has no Writes"},
		"source":   {"Source ", "See ", "x.lua:1: the header has no Source"},
		"twice":    {"Source ", "Writes ", "x.lua:10: Writes twice\nx.lua:1: the header has no Source"},
		"how many": {"six for each rule", "and so on", "x.lua:5: ARGV[2..] does not say how many for each rule"},
		"keys":     {"KEYS[1..n]", "rules", "x.lua:1: the header has no KEYS or no ARGV"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, faults := readHeader("x", strings.Replace(good, test.from, test.to, 1))
			if got := strings.Join(faults, "\n"); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
