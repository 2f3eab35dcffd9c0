package usage

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/wire"
)

// fine slots are for a chart of the last quarter of an hour. They hold sums alone, not who spent.
var fine = grain{name: "15s", every: 15 * time.Second, reach: 15 * time.Minute}

// chunk is the time whose fine slots are in one hash: that of a slot of minutes.
const chunk = 5 * time.Minute

// fineKey is the hash of the fine slots of a chunk that began at start. scope is what the keys of the scope begin with.
//
//	S     units that were spent in the slot that began S seconds after start
//	S:n   tasks, if they are not as many as the units: how many more
func fineKey(scope string, start int64) string { return fine.key(scope, "!spent:", start) }

const fineTasks = ":n"

// longestPeriod bounds the time over which one flush spreads its sums.
const longestPeriod = time.Minute

// part is a fine slot, and the part of a period that lies before its end, in nanoseconds.
type part struct {
	start  int64
	before time.Duration
}

// partsOf returns the fine slots in which a period has a part.
func partsOf(from, to time.Time) (parts []part) {
	if oldest := to.Add(-longestPeriod); from.Before(oldest) {
		from = oldest
	}
	if from.After(to) { // the clock has stepped back
		from = to
	}
	for start := fine.start(from); ; start += int64(fine.every / time.Second) {
		end := time.Unix(start, 0).Add(fine.every)
		if !end.Before(to) {
			return append(parts, part{start, to.Sub(from)})
		}
		parts = append(parts, part{start, end.Sub(from)})
	}
}

// spread divides a sum over slots by the time that a period has in each.
func spread(n int64, parts []part) []int64 {
	shares, given := make([]int64, len(parts)), int64(0)
	whole := parts[len(parts)-1].before
	for i, p := range parts {
		by := n
		if i < len(parts)-1 {
			by = int64(float64(n) * (float64(p.before) / float64(whole)))
		}
		shares[i], given = by-given, by
	}
	return shares
}

// addFine sends what was spent from a scope in the period of the flush, by fine slot.
func (b *batch) addFine(ctx context.Context, pipe redis.Pipeliner, a *account) {
	parts := partsOf(b.since, b.now)
	units, more := spread(a.all.Units, parts), spread(a.all.Tasks-a.all.Units, parts)
	for i, p := range parts {
		start := minutes.start(time.Unix(p.start, 0))
		key, field := fineKey(wire.ScopeKey(b.prefix, a.scope.String()), start), strconv.FormatInt(p.start-start, 10)
		for field, n := range map[string]int64{field: units[i], field + fineTasks: more[i]} {
			if n != 0 {
				pipe.HIncrBy(ctx, key, field, n)
				pipe.PExpire(ctx, key, time.Unix(start, 0).Add(chunk+fine.reach+spare).Sub(b.now))
			}
		}
	}
}

// fineSeries reads the points of fine slots.
func (b book) fineSeries(ctx context.Context, from, to time.Time) ([]Point, error) {
	first, last := fine.start(from), fine.start(to.Add(-1))
	pipe, chunks := b.rdb.Pipeline(), map[int64]*redis.MapStringStringCmd{}
	for start := minutes.start(from); start <= last; start += int64(chunk / time.Second) {
		chunks[start] = pipe.HGetAll(ctx, fineKey(b.key, start))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, b.failed(err)
	}
	var points []Point
	for start := first; start <= last; start += int64(fine.every / time.Second) {
		at := time.Unix(start, 0)
		begins := minutes.start(at)
		fields, field := chunks[begins].Val(), strconv.FormatInt(start-begins, 10)
		units := number(fields[field])
		points = append(points, Point{at, Sum{units, units + number(fields[field+fineTasks])}.spent()})
	}
	return points, nil
}
