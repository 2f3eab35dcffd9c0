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
	// From is when the first slot begins: at most 5 minutes before the requested time; 2 hours if that is
	// more than an hour ago; and a day, by UTC, if that is more than a day ago.
	From, To time.Time
	// All is everything that was recorded. Other is the part of it that Spenders, the largest ones, do
	// not list.
	All, Other Sum
	// Ends are the runs that did not succeed.
	Ends Ends
	// ByUnit is the spending of units other than requests, by name. OtherByUnit is the part of it that
	// Spenders do not list. They are nil if nothing costs by unit.
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

// Read returns the spending from a scope within the last since, up to Longest. It uses only the Prefix
// of cfg. Costs one round trip with at most 96 commands. The report is empty for an unknown scope:
// nothing was spent from it, or too little to be among the thousand scopes of its provider that are
// kept.
//
// The error is a *policy.ScopeError, one for a since out of range, or wraps Redis's.
func Read(ctx context.Context, rdb redis.UniversalClient, cfg Config, scope string, since time.Duration) (Report, error) {
	of, err := openBook(rdb, cfg, scope)
	if err == nil {
		err = checkSince(since)
	}
	if err != nil {
		return Report{}, err
	}
	now := time.Now()
	slots, err := of.slots(ctx, grainFor(since), now.Add(-since), now)
	if err != nil {
		return Report{}, err
	}
	return of.report(slots, now), nil
}

// ReadDays is Read with one report for each day, by UTC, that the last since covers in part: oldest
// first, and the last one until now. Its errors and cost are those of Read.
func ReadDays(ctx context.Context, rdb redis.UniversalClient, cfg Config, scope string, since time.Duration) ([]Report, error) {
	of, err := openBook(rdb, cfg, scope)
	if err == nil {
		err = checkSince(since)
	}
	if err != nil {
		return nil, err
	}
	now := time.Now()
	slots, err := of.slots(ctx, days, now.Add(-since), now)
	if err != nil {
		return nil, err
	}
	reports := make([]Report, len(slots))
	for i := range slots {
		reports[i] = of.report(slots[i:i+1], now)
		if ends := reports[i].From.Add(day); ends.Before(now) {
			reports[i].To = ends
		}
	}
	return reports, nil
}

func checkSince(since time.Duration) error {
	if since <= 0 || since > Longest {
		return fmt.Errorf("usage: cannot look back %s; use more than 0 and at most %s", since, Longest)
	}
	return nil
}

// book is where what was spent from a scope stands.
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

// Used reports whether anything was spent from a scope, or below it, in the last 31 days. Costs one round trip of one command. Its
// errors are those of Read.
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

// slot is what one slot of time has.
type slot struct {
	start                int64
	used, units, shadows *redis.MapStringStringCmd
}

// slots reads the slots that the time from one moment to another has a part in.
func (b book) slots(ctx context.Context, g grain, from, to time.Time) (slots []slot, err error) {
	pipe := b.rdb.Pipeline()
	for start := g.start(from); start <= g.start(to); start += int64(g.every / time.Second) {
		slots = append(slots, slot{
			start, pipe.HGetAll(ctx, g.usedKey(b.key, start)), pipe.HGetAll(ctx, g.unitsKey(b.key, start)), pipe.HGetAll(ctx, g.shadowsKey(b.key, start)),
		})
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, b.failed(err)
	}
	return slots, nil
}

// report is what some slots have together.
func (b book) report(slots []slot, to time.Time) Report {
	r, by := Report{Scope: b.scope, From: time.Unix(slots[0].start, 0), To: to}, map[By]*Spender{}
	for _, s := range slots {
		r.read(s.used.Val(), by)
	}
	for _, s := range slots {
		r.readUnits(s.units.Val(), by)
	}
	r.finish(by)
	r.Shadows = readShadows(slots)
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

// read adds what one slot has.
func (r *Report) read(fields map[string]string, by map[By]*Spender) {
	for field, text := range fields {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			continue // not written by this package
		}
		kind, name, of := strings.Cut(field, ":")
		if !of {
			r.All.note(kind, n)
			r.Ends.note(kind, n)
			continue
		}
		who, ok := parseBy(name)
		if !ok {
			continue
		}
		s := by[who]
		if s == nil {
			s = &Spender{By: who}
			by[who] = s
		}
		s.note(kind, n)
		if at := time.Unix(n, 0); kind == fieldLast && at.After(s.Last) {
			s.Last = at
		}
	}
}

func readShadows(slots []slot) (all []Shadow) {
	by := map[string]*Shadow{}
	for _, slot := range slots {
		for field, text := range slot.shadows.Val() {
			n, err := strconv.ParseInt(text, 10, 64)
			kind, name, of := strings.Cut(field, ":")
			if err != nil || !of {
				continue // not written by this package
			}
			if by[name] == nil {
				by[name] = &Shadow{Rule: wire.Unescape(name)}
			}
			switch kind {
			case fieldTasks:
				by[name].Starts += n
			case fieldWaits:
				by[name].Waits += n
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(by)) {
		all = append(all, *by[name])
	}
	return all
}

func (e *Ends) note(kind string, n int64) {
	switch kind {
	case fieldFailed:
		e.Failed += n
	case fieldRefused:
		e.Refused += n
	}
}

func (s *Sum) note(kind string, n int64) {
	switch kind {
	case fieldUnits:
		s.Units += n
	case fieldTasks:
		s.Tasks += n
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
