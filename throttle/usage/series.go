package usage

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// Point is the spending from a scope in one slot of time.
type Point struct {
	At  time.Time // when the slot begins
	Sum           // of all who spent
}

// Series returns the spending from a scope and those below it over time, one point for each slot from
// the slot of from to the one before to. Slots after now are left out, and a slot without spending is
// a point with zeros.
//
// step is the width of the slots, one of those that are kept: 15 seconds, for a quarter of an hour; 5
// minutes, for an hour; 2 hours, for a day; and 24 hours, which begin and end by UTC, for 31 days. A
// quarter of an hour has 60 or 61 points of 15 seconds, and a day 12 or 13 of 2 hours. It uses only the
// Prefix of cfg.
//
// Spending is sent every ten seconds, and slots of 15 seconds get their part of it by time: the last of
// them grow for ten seconds more.
//
// Costs one round trip with at most 32 commands. The error is a *policy.ScopeError, one for a step or
// from out of range, or wraps Redis's.
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
	if g == fine {
		return of.fineSeries(ctx, from, to)
	}
	pipe := rdb.Pipeline()
	var points []Point
	var sums []*redis.SliceCmd
	for start := g.start(from); start <= g.start(to.Add(-1)); start += int64(g.every / time.Second) {
		points = append(points, Point{At: time.Unix(start, 0)})
		sums = append(sums, pipe.HMGet(ctx, g.usedKey(of.key, start), fieldUnits, fieldTasks))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, of.failed(err)
	}
	for i, one := range sums {
		fields := one.Val()
		points[i].Sum = Sum{Units: number(fields[0]), Tasks: number(fields[1])}.spent()
	}
	return points, nil
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
