package throttle

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// What Redis holds of those who wait, and whether it agrees with itself and the model.

// lines is what Redis holds of those who wait.
type standings struct {
	line   map[string][]string // tickets in their order, by scope
	due    map[string]int64    // when to look, by rule
	round  []seat
	places []seat            // in the rounds of levels
	out    map[string]string // tickets and when they left, by scope, a zero byte and ticket
	at     map[string]string
	parked map[string]bool // scope, a zero byte and ticket
}

type seat struct {
	rule, rank, scope, member string
}

// linesAsked is all that is kept of those who wait, asked for behind whatever is in the
// pipe: the keys that a provider has one of each, the lines, and now and then TTLs.
type linesAsked struct {
	due   *redis.ZSliceCmd
	round *redis.StringSliceCmd
	out   *redis.MapStringStringCmd
	at    *redis.MapStringStringCmd
	parks *redis.StringSliceCmd
	lines []*redis.StringSliceCmd
	ttls  []*redis.DurationCmd
}

func askLines(pipe redis.Pipeliner, keys []string, ttls bool) *linesAsked {
	a := &linesAsked{
		due: pipe.ZRangeWithScores(ctx, keys[0], 0, -1), round: pipe.ZRange(ctx, keys[1], 0, -1),
		out: pipe.HGetAll(ctx, keys[2]), at: pipe.HGetAll(ctx, keys[3]), parks: pipe.ZRange(ctx, keys[5], 0, -1),
	}
	for _, line := range keys[6:] {
		a.lines = append(a.lines, pipe.ZRange(ctx, line, 0, -1))
	}
	for i := 0; ttls && i < len(keys); i++ {
		a.ttls = append(a.ttls, pipe.PTTL(ctx, keys[i]))
	}
	return a
}

// called notes a call that may change who waits.
func (w *turnsWorld) called() {
	w.h.counts.calls++
	w.fresh = false
}

// look reads who waits, unless that is known.
func (w *turnsWorld) look() {
	if !w.fresh {
		w.seen, w.fresh = w.read(), true
	}
}

func (w *turnsWorld) read() standings {
	w.h.counts.reads++
	a := w.last.asked
	if a == nil {
		pipe := w.rdb.Pipeline()
		a = askLines(pipe, w.keys, true)
		_, err := pipe.Exec(ctx)
		must(err)
	}
	must(a.due.Err())
	l := standings{line: map[string][]string{}, due: map[string]int64{}, out: a.out.Val(), at: a.at.Val(), parked: map[string]bool{}}
	for _, member := range a.parks.Val() {
		l.parked[member] = true
	}
	for _, z := range a.due.Val() {
		l.due[z.Member.(string)] = int64(z.Score) //nolint:forcetypeassert // members are texts
	}
	for _, member := range a.round.Val() {
		rule, rest, _ := strings.Cut(member, "\x00")
		place := seat{rule, rest[:10], rest[10:], member}
		if strings.Contains(rule, ":") || rule == "!" {
			l.round = append(l.round, place)
		} else if rule != `"` { // those are of nodes
			l.places = append(l.places, place)
		}
	}
	for i, line := range a.lines {
		if len(line.Val()) > 0 {
			l.line[scopePath(w.h.scopes[i])] = line.Val()
		}
	}
	for i, ttl := range a.ttls {
		if ttl.Val() == -1 {
			fail("%s has no TTL", w.keys[i])
		}
	}
	return l
}

// sound: everyone is in one place, every line has one seat, every round a time,
// and the sums are those of the lines.
func (w *turnsWorld) sound() {
	w.look()
	l := w.seen
	seats := map[string]string{}
	for _, s := range l.round {
		if seats[s.scope] != "" {
			fail("%q has two seats: %q and %q", s.scope, seats[s.scope], s.member)
		}
		seats[s.scope] = s.member
		if _, ok := l.due[s.rule]; !ok {
			fail("the round of %s has a seat and no time to look at it", s.rule)
		}
		if l.at["S"+s.scope] != s.member {
			fail("the seat of %q is %q, and noted as %q", s.scope, s.member, l.at["S"+s.scope])
		}
		if tag := w.tag(s.scope, s.rule); s.rule != "!" && s.rank[3:] != tag {
			fail("%q sits with %s by the stamp %x, and its tag is %x: %q, out %q, line %v", s.scope, s.rule, s.rank[3:], tag, w.seen.at["T"+s.scope], w.seen.out, w.seen.line)
		}
		if len(l.line[s.scope]) == 0 {
			fail("a seat for the empty line of %q", s.scope)
		}
		first := w.find(readPlace("p"+s.scope, l.line[s.scope][0]))
		if band := int(s.rank[0])<<16 + int(s.rank[1])<<8 + int(s.rank[2]); band > 1<<20-first.priority && !first.passed {
			fail("%q sits for priority %d, and its first has %d", s.scope, 1<<20-band, first.priority)
		}
	}
	where := map[string]string{}
	for field := range l.out {
		scope, ticket, _ := strings.Cut(field, "\x00")
		where[scope+" "+ticket] = "out"
	}
	for member := range l.parked {
		if scope, ticket, _ := strings.Cut(member, "\x00"); ticket != ":g/" && ticket != ":" {
			if was := where[scope+" "+ticket]; was != "" {
				fail("%q is parked, and %s", member, was)
			}
			where[scope+" "+ticket] = "parked"
		}
	}
	units, of := map[string]int64{}, map[string]int64{}
	for _, scope := range w.h.scopes {
		path := scopePath(scope)
		line := l.line[path]
		if len(line) > 0 && seats[path] == "" {
			fail("nobody sits for the line of %s: %v", scope, line)
		}
		its := map[string]int64{} // by rule
		for _, ticket := range line {
			for _, b := range w.plan(scope).bounds {
				its[b.Rule.Name] += readPlace(scope, ticket).under(b.Rule)
			}
			its[""] += readPlace(scope, ticket).under(Rule{})
			if was := where[path+" "+ticket]; was != "" {
				fail("%s of %s is in line, and %s", ticket, scope, was)
			}
			where[path+" "+ticket] = "line"
		}
		w.sumIs("L"+path, its[""])
		for i, rule := range w.plan(scope).keys {
			name, one := strings.TrimPrefix(rule, w.plan(scope).provider), w.plan(scope).bounds[i].Rule
			units[name] += its[one.Name]
			if one.unit() == "tokens" {
				w.sumIs("L"+path+"\x00tokens", its[one.Name])
			}
			of[name] += min(1, int64(len(line)))
		}
	}
	for name := range units {
		w.sumIs("U"+name, units[name])
		w.sumIs("N"+name, of[name])
	}
	w.placed(where)
	w.timesGrow()
	w.inPlace()
}

// inPlace: scopes in line, and no others, have places in the rounds of their levels, by their tags.
func (w *turnsWorld) inPlace() {
	want := map[string]bool{}
	for _, s := range w.seen.round {
		p := w.plan("p" + s.scope)
		for i, key := range p.keys {
			rule := strings.TrimPrefix(key, p.provider)
			level, _, _ := strings.Cut(rule, ":")
			first, _, _ := strings.Cut(strings.TrimPrefix(p.keys[0], p.provider), ":")
			if p.weights[i] != noWeight && level != first { // seats themselves are by the first
				want[level+"\x00\x00\x00\x00"+w.tag(s.scope, rule)+s.scope] = true
			}
		}
	}
	for _, place := range w.seen.places {
		if !want[place.member] && !w.disturbed {
			fail("%q is in the round of a level, and should not be", place.member)
		}
		delete(want, place.member)
	}
	for place := range want {
		if !w.disturbed {
			fail("%q is not in the round of its level", place)
		}
	}
}

// waitsBelow says whether anybody waits for a rule of a level or of one below.
func (w *turnsWorld) waitsBelow(level string) bool {
	for scope := range w.seen.line {
		if strings.HasPrefix(scope+"/", level+"/") {
			return true
		}
	}
	return false
}

// timesGrow: virtual times only grow, as long as anybody waits, and they, sums and tags are of
// those who do.
func (w *turnsWorld) timesGrow() {
	times := map[string]int64{}
	for field, value := range w.seen.at {
		switch n, _ := strconv.ParseInt(value, 10, 64); field[0] {
		case '#':
			times[field] = n
		case 'V':
			times[field] = n
			if n < w.times[field] && len(w.seen.round) > 0 && !w.anew() {
				fail("%s was %d and is %d", field, w.times[field], n)
			}
			if !w.waitsBelow(field[1:]) && len(w.seen.round) > 0 {
				fail("%s is kept, and nobody waits below", field)
			}
		case 'N', 'U':
			if level, _, _ := strings.Cut(field[1:], ":"); !w.waitsBelow(level) && len(w.seen.round) > 0 {
				fail("%s is kept, and nobody waits below", field)
			}
		case 'T', 'Q':
			w.kept(field, field[1:])
		case 'L':
			scope, _, _ := strings.Cut(field[1:], "\x00")
			w.kept(field, scope)
		}
	}
	w.times = times
}

// kept: what is noted of a line is forgotten when it is empty, unless nobody waits.
func (w *turnsWorld) kept(field, scope string) {
	if len(w.seen.line[scope]) == 0 && len(w.seen.round) > 0 {
		fail("%q is kept, and the line is empty", field)
	}
}

// anew says that nobody waited for a moment since the times were seen, and all is forgotten.
func (w *turnsWorld) anew() bool {
	top, _ := strconv.ParseInt(w.seen.at["#"], 10, 64)
	return top < w.times["#"]
}

func (w *turnsWorld) sumIs(field string, want int64) {
	if got, _ := strconv.ParseInt(w.seen.at[field], 10, 64); got != want {
		fail("%s is %q, and should be %d", field, w.seen.at[field], want)
	}
}

// placed holds where everybody is against the model.
func (w *turnsWorld) placed(where map[string]string) {
	for _, t := range w.tasks {
		key := scopePath(t.Scope) + " " + t.key()
		is := where[key]
		delete(where, key)
		switch t.stage {
		case parked:
			if is != "line" {
				fail("%s %s was told to wait, and is %q", t.Scope, t.key(), is)
			}
		case aside:
			if is != "parked" {
				fail("%s %s is parked, and is %q", t.Scope, t.key(), is)
			}
		case released:
			if is != "out" {
				fail("%s %s was released and has not come, and is %q", t.Scope, t.key(), is)
			}
		case running, gone, fresh:
			if is != "" {
				fail("%s %s does not wait, and is in %q", t.Scope, t.key(), is)
			}
		}
	}
	for key := range where {
		fail("nobody has heard of %s", key)
	}
}

// lastCall is a hook that keeps the last call of a script, and reads who waits in the
// round trip of each.
type lastCall struct {
	args  []any
	rdb   redis.UniversalClient
	keys  []string
	asked *linesAsked
	calls int
}

// watched adds the hook to a client.
func watched(rdb redis.UniversalClient) *lastCall {
	last := &lastCall{rdb: rdb}
	rdb.AddHook(last)
	return last
}

func (c *lastCall) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *lastCall) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		args := cmd.Args()
		c.asked = nil
		if args[0] != "evalsha" {
			return next(ctx, cmd)
		}
		c.args = slices.Clone(args)
		pipe := c.rdb.Pipeline()
		must(pipe.Process(ctx, cmd))
		c.calls++
		asked := askLines(pipe, c.keys, c.calls%8 == 0)
		_, _ = pipe.Exec(ctx) // each has its error
		c.asked = asked
		if damaged(cmd.Err()) { // it would be mended and sent once more
			fail("%v", cmd.Err())
		}
		return cmd.Err()
	}
}

func (c *lastCall) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
