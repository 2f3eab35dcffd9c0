package usage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
)

// Longest is how far back Read can look.
const Longest = 31 * day

// Report is what was spent from a scope and from those below it.
type Report struct {
	Scope policy.Scope
	// From is when the first slot begins: at most 5 minutes before the requested time; 2 hours if that is more than an hour ago;
	// and a day, by UTC, if that is more than a day ago.
	From, To time.Time
	// All is everything that was recorded. Other is the part of it that Spenders, the largest ones, do not list.
	All, Other Sum
	// Ends are the runs that did not succeed.
	Ends Ends
	// ByUnit is the spending of units other than requests, by name. OtherByUnit is the part of it that Spenders do not list.
	ByUnit, OtherByUnit map[string]int64
	Spenders            []Spender // most units first
	// Shadows are the shadow rules that count at the scope itself and were asked, by name.
	Shadows []Shadow
}

// Spender is a spender and its spending.
type Spender struct {
	By
	Sum
	// ByUnit is what it spent of other units than requests, nil for none.
	ByUnit map[string]int64
	// Last is when it spent last, accurate to the ten seconds between two flushes.
	Last time.Time
}

// Read returns the spending from a scope within the last since, up to Longest. It uses only the Prefix of cfg. Costs one round
// trip with at most 32 commands. The report is empty for a scope that is not among the thousand of its provider that are kept.
// The error is a *policy.ScopeError, one for a since out of range, or wraps Redis's.
func Read(ctx context.Context, rdb redis.UniversalClient, cfg Config, scope string, since time.Duration) (Report, error) {
	b, slots, now, err := lately(ctx, rdb, cfg, scope, since, grainFor(since))
	if err != nil {
		return Report{}, err
	}
	return b.report(slots, now), nil
}

// ReadDays is Read with one report for each day, by UTC, that the last since covers in part, oldest first.
func ReadDays(ctx context.Context, rdb redis.UniversalClient, cfg Config, scope string, since time.Duration) ([]Report, error) {
	b, slots, now, err := lately(ctx, rdb, cfg, scope, since, days)
	if err != nil {
		return nil, err
	}
	reports := make([]Report, len(slots))
	for i := range slots {
		reports[i] = b.report(slots[i:i+1], now)
		if ends := reports[i].From.Add(day); ends.Before(now) {
			reports[i].To = ends
		}
	}
	return reports, nil
}

// lately reads the slots that the last since has a part in.
func lately(ctx context.Context, rdb redis.UniversalClient, cfg Config, scope string, since time.Duration, g grain) (b book, slots []slot, now time.Time, err error) {
	if b, err = openBook(rdb, cfg, scope); err != nil {
		return b, nil, now, err
	}
	if since <= 0 || since > Longest {
		return b, nil, now, fmt.Errorf("usage: cannot look back %s; use more than 0 and at most %s", since, Longest)
	}
	now = time.Now()
	slots, err = b.slots(ctx, g, now.Add(-since), now)
	return b, slots, now, err
}

// book is where the spending from a scope is kept.
type book struct {
	rdb   redis.UniversalClient
	scope policy.Scope
	key   string // what the scope's keys begin with
}

func openBook(rdb redis.UniversalClient, cfg Config, scope string) (book, error) {
	s, err := policy.ParseScope(scope)
	if err != nil {
		return book{}, err
	}
	prefix, err := cfg.prefix()
	if err != nil {
		return book{}, err
	}
	if rdb == nil {
		return book{}, errors.New("usage: a Redis client is needed to read, got nil")
	}
	return book{rdb, s, wire.ScopeKey(prefix, s.String())}, nil
}

// Used reports whether anything was spent from a scope, or below it, in the last 31 days. Costs one round trip of one command.
// Its errors are those of Read.
func Used(ctx context.Context, rdb redis.UniversalClient, cfg Config, scope string) (bool, error) {
	b, err := openBook(rdb, cfg, scope)
	if err != nil {
		return false, err
	}
	var keys []string
	now := time.Now()
	for back := time.Duration(0); back <= days.reach; back += days.every {
		keys = append(keys, days.usedKey(b.key, days.start(now.Add(-back))))
	}
	n, err := rdb.Exists(ctx, keys...).Result()
	if err != nil {
		return false, b.failed(err)
	}
	return n > 0, nil
}

func (b book) failed(err error) error {
	return fmt.Errorf("usage: read who uses %q: %w", b.scope.String(), err)
}

// slot is what a slot of time has.
type slot struct {
	start int64
	used  *redis.MapStringStringCmd
}

// slots reads the slots that the time from one moment to another has a part in.
func (b book) slots(ctx context.Context, g grain, from, to time.Time) (slots []slot, err error) {
	pipe := b.rdb.Pipeline()
	for start := g.start(from); start <= g.start(to); start += int64(g.every / time.Second) {
		slots = append(slots, slot{start, pipe.HGetAll(ctx, g.usedKey(b.key, start))})
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, b.failed(err)
	}
	return slots, nil
}

// report adds up what some slots have.
func (b book) report(slots []slot, to time.Time) Report {
	r := Report{Scope: b.scope, From: time.Unix(slots[0].start, 0), To: to}
	by, shadows := map[By]*Spender{}, map[string]*Shadow{}
	for _, s := range slots {
		r.read(s.used.Val(), by, shadows)
	}
	for _, rule := range slices.Sorted(maps.Keys(shadows)) {
		r.Shadows = append(r.Shadows, *shadows[rule])
	}
	r.finish(by)
	return r
}

// grainFor returns the finest slots that reach back so far.
func grainFor(since time.Duration) grain {
	for _, g := range grains {
		if since <= g.reach {
			return g
		}
	}
	return grains[len(grains)-1]
}

// read adds what one slot has. A field that this package has not written is left out.
func (r *Report) read(fields map[string]string, by map[By]*Spender, shadows map[string]*Shadow) {
	totals := map[string]*int64{fieldUnits: &r.All.Units, fieldTasks: &r.All.Tasks, fieldFailed: &r.Ends.Failed, fieldRefused: &r.Ends.Refused}
	for field, text := range fields {
		n, err := strconv.ParseInt(text, 10, 64)
		kind, name, of := strings.Cut(field, ":")
		unit, isUnit := strings.CutPrefix(kind, unitMark)
		spender, known := parseBy(name)
		switch {
		case err != nil || isUnit && (policy.Costs{unit: 1}).Check() != nil:
		case isUnit && !of:
			r.ByUnit = plus(r.ByUnit, unit, n)
		case !of:
			if total := totals[kind]; total != nil {
				*total += n
			}
		case kind == fieldStarts || kind == fieldWaits:
			if shadows[name] == nil {
				shadows[name] = &Shadow{Rule: wire.Unescape(name)}
			}
			if kind == fieldStarts {
				shadows[name].Starts += n
			} else {
				shadows[name].Waits += n
			}
		case known:
			if by[spender] == nil {
				by[spender] = &Spender{By: spender}
			}
			by[spender].read(kind, unit, isUnit, n)
		}
	}
}

func (s *Spender) read(kind, unit string, isUnit bool, n int64) {
	switch {
	case isUnit:
		s.ByUnit = plus(s.ByUnit, unit, n)
	case kind == fieldUnits:
		s.Units += n
	case kind == fieldTasks:
		s.Tasks += n
	case kind == fieldLast && time.Unix(n, 0).After(s.Last):
		s.Last = time.Unix(n, 0)
	}
}

// spent is nothing where more came back than was spent.
func (s Sum) spent() Sum { return Sum{max(s.Units, 0), max(s.Tasks, 0)} }

// finish lists who spent, and finds what others did.
func (r *Report) finish(by map[By]*Spender) {
	r.All, r.ByUnit = r.All.spent(), spentOf(r.ByUnit)
	for _, s := range by {
		s.Sum, s.ByUnit = s.spent(), spentOf(s.ByUnit)
	}
	r.Other = r.All
	for _, s := range slices.SortedFunc(maps.Values(by), func(a, b *Spender) int {
		return cmp.Or(cmp.Compare(b.Units, a.Units), cmp.Compare(b.Tasks, a.Tasks), cmp.Compare(a.name(), b.name()))
	}) {
		if s.Units > 0 || s.Tasks > 0 && s.ByUnit != nil { // otherwise taken away while it was written
			r.Spenders = append(r.Spenders, *s)
			r.Other.Units -= s.Units
			r.Other.Tasks -= s.Tasks
		}
	}
	r.Other = r.Other.spent()
	r.OtherByUnit = r.otherUnits()
}

// spentOf leaves out the units of which more came back than was spent.
func spentOf(units map[string]int64) map[string]int64 {
	maps.DeleteFunc(units, func(_ string, n int64) bool { return n <= 0 })
	if len(units) == 0 {
		return nil
	}
	return units
}

func plus(units map[string]int64, unit string, n int64) map[string]int64 {
	if units == nil {
		units = map[string]int64{}
	}
	units[unit] += n
	return units
}

// otherUnits is what the spenders of the report leave of what was spent by unit.
func (r *Report) otherUnits() (others map[string]int64) {
	for unit, n := range r.ByUnit {
		for _, s := range r.Spenders {
			n -= s.ByUnit[unit]
		}
		if n > 0 {
			others = plus(others, unit, n)
		}
	}
	return others
}

// Runs are the runs of a scope and of those below it.
type Runs struct {
	Started int64
	Ends
}

// Today returns the runs since the day began, by UTC, of each of some scopes, in their order. It uses only the Prefix of cfg.
// Costs one round trip with a command for each scope. The error is a *policy.ScopeError, or wraps Redis's.
func Today(ctx context.Context, rdb redis.UniversalClient, cfg Config, scopes []string, now time.Time) ([]Runs, error) {
	replies := make([]*redis.SliceCmd, len(scopes))
	pipe := rdb.Pipeline()
	for i, scope := range scopes {
		b, err := openBook(rdb, cfg, scope)
		if err != nil {
			return nil, err
		}
		replies[i] = pipe.HMGet(ctx, days.usedKey(b.key, days.start(now)), fieldTasks, fieldFailed, fieldRefused)
	}
	if pipe.Len() == 0 {
		return nil, nil
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("usage: read today's runs: %w", err)
	}
	all := make([]Runs, len(scopes))
	for i, reply := range replies {
		for at, to := range []*int64{&all[i].Started, &all[i].Failed, &all[i].Refused} {
			*to = number(reply.Val()[at])
		}
	}
	return all, nil
}

// Point is the spending from a scope in one slot of time.
type Point struct {
	At  time.Time // when the slot begins
	Sum           // of all who spent
}

// Series returns the spending from a scope and those below it over time, one point for each slot from the slot of from to the one
// before to. Slots after now are left out, and a slot without spending is a point with zeros. The last slots of 15 seconds grow
// for ten seconds more.
//
// step is the width of the slots, one of those that are kept: 15 seconds, for a quarter of an hour; 5 minutes, for an hour; 2
// hours, for a day; and 24 hours, which begin and end by UTC, for 31 days. It uses only the Prefix of cfg. Costs one round trip, with 4
// commands for a quarter of an hour and one for each point of longer slots. The error is a *policy.ScopeError, one for a step or from out
// of range, or wraps Redis's.
func Series(ctx context.Context, rdb redis.UniversalClient, cfg Config, scope string, from, to time.Time, step time.Duration) ([]Point, error) {
	of, err := openBook(rdb, cfg, scope)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	g, err := grainOf(step, now.Sub(from))
	if err != nil {
		return nil, err
	}
	if to.After(now) {
		to = now.Add(1)
	}
	if !from.Before(to) {
		return nil, fmt.Errorf("usage: there is nothing from %s to %s", from.Format(time.RFC3339), to.Format(time.RFC3339))
	}
	var points []Point
	for start := g.start(from); start <= g.start(to.Add(-1)); start += int64(g.every / time.Second) {
		points = append(points, Point{At: time.Unix(start, 0)})
	}
	return points, of.sums(ctx, g, points)
}

// sums reads the sums of points, those that are in one hash together.
func (b book) sums(ctx context.Context, g grain, points []Point) error {
	var keys []string
	fields := map[string][]string{}
	for _, p := range points {
		key, units, tasks := g.sums(b.key, p.At.Unix())
		if fields[key] == nil {
			keys = append(keys, key)
		}
		fields[key] = append(fields[key], units, tasks)
	}
	cmds, err := b.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, key := range keys {
			pipe.HMGet(ctx, key, fields[key]...)
		}
		return nil
	})
	if err != nil {
		return b.failed(err)
	}
	var sums []any
	for _, cmd := range cmds {
		sums = append(sums, cmd.(*redis.SliceCmd).Val()...) //nolint:forcetypeassert // see above
	}
	for i := range points {
		points[i].Sum = Sum{Units: number(sums[2*i]), Tasks: number(sums[2*i+1])}.spent()
	}
	return nil
}

// grainOf returns the slots of a width, which must reach so far back.
func grainOf(step, back time.Duration) (grain, error) {
	for _, g := range append([]grain{fine}, grains...) {
		switch {
		case step != g.every:
		case back > g.reach:
			return g, fmt.Errorf("usage: slots of %s are kept for %s, and the series would begin %s ago", step, g.reach, back.Round(time.Second))
		default:
			return g, nil
		}
	}
	return grain{}, fmt.Errorf("usage: no slots of %s are kept; use a step of %s, %s, %s or %s", step, fine.every, minutes.every, hours.every, days.every)
}

// number reads a field of a hash; what is none is 0.
func number(field any) int64 {
	text, _ := field.(string)
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}
