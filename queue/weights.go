package queue

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle"
)

// Weights are the weights of asynq's queues, for tasks of those queues that wait for their limits. The
// zero Weights treat all queues alike. Weights is an immutable value.
type Weights struct {
	queues  map[string]int
	strict  bool
	strides map[string]int // of each lane; nil: no lanes
	widest  int            // the stride of a queue without a weight
	ranks   map[string]int // strict priorities, 0 for the first; nil: none
	lowest  int
}

const (
	// finest bounds the smallest stride, so that a queue has room for many tasks. Shares that need finer
	// strides are accurate to 1 %.
	finest    = 60
	maxStride = 1_000_000
	maxWeight = 1_000_000
	maxLane   = 128 // bytes, as throttle.Turn.Lane
)

// NewWeights returns the weights of Queues and StrictPriority of an asynq.Config. As in asynq, a queue
// with a weight below 1 is left out. A single queue, and queues of equal weight, are treated alike.
func NewWeights(queues map[string]int, strict bool) Weights {
	w := Weights{queues: map[string]int{}, strict: strict}
	for name, weight := range queues {
		if weight > 0 {
			w.queues[name] = min(weight, maxWeight)
		}
	}
	weights := slices.Compact(slices.Sorted(maps.Values(w.queues)))
	slices.Reverse(weights)
	if len(weights) < 2 {
		return w
	}
	w.lowest, w.widest = 1-len(weights), 1
	steps := strides(weights)
	if strict {
		w.ranks = map[string]int{}
	} else {
		w.strides = map[string]int{}
	}
	for name, weight := range w.queues {
		i := slices.Index(weights, weight)
		if strict {
			w.ranks[name] = -i
			continue
		}
		w.strides[name] = steps[i]
		w.widest = max(w.widest, steps[i])
	}
	return w
}

// strides returns whole numbers that are inversely proportional to weights, the largest weight first.
func strides(weights []int) []int {
	all := 1 // the least common multiple, or 0 for one that is too large
	for _, weight := range weights {
		if all = all / gcd(all, weight) * weight; all > finest*weights[0] {
			all = 0
			break
		}
	}
	var out []int
	for _, weight := range weights {
		stride := float64(all) / float64(weight)
		if all == 0 {
			stride = math.Round(finest * float64(weights[0]) / float64(weight))
		}
		out = append(out, int(min(stride, maxStride)))
	}
	return out
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// Rank returns what a waiting task gets from the weight of its queue: its priority, which is its own
// unless that is 0, and its lane with its stride; see throttle.Turn. A queue without a weight counts
// as the least of them.
func (w Weights) Rank(queue string, own int) (priority int, lane string, stride int) {
	switch rank, known := w.ranks[queue]; {
	case w.ranks == nil || own != 0:
	case known:
		return rank, "", 0
	default:
		return w.lowest, "", 0
	}
	if w.strides == nil || len(queue) > maxLane {
		return own, "", 0
	}
	if stride = w.strides[queue]; stride == 0 {
		stride = w.widest
	}
	return own, queue, stride
}

func (w Weights) ranked(ask throttle.Waiter, queue string) throttle.Waiter {
	ask.Priority, ask.Lane, ask.Stride = w.Rank(queue, ask.Priority)
	return ask
}

// Together returns the combined weights of several servers: a queue has the largest weight that any
// server gives it, and the weights are strict if all are. A server of one queue does not count.
func Together(all ...Weights) Weights {
	queues, strict := map[string]int{}, true
	for _, w := range all {
		if len(w.queues) < 2 {
			continue
		}
		for name, weight := range w.queues {
			queues[name] = max(queues[name], weight)
		}
		strict = strict && w.strict
	}
	return NewWeights(queues, strict)
}

// The key under which workers publish the weights of their servers, so that programs that enqueue give
// tasks the same places as workers would.
const (
	weightsKey = "hw:queues"
	// weightsStay is how long weights count after the last worker published any. weightsLive is how long
	// they count beside others that were published since.
	weightsStay = 24 * time.Hour
	weightsLive = time.Minute
	// mostWeights is how many different weights are read.
	mostWeights = 64
)

// published is the form of Weights in Redis.
type published struct {
	Queues map[string]int `json:"queues"`
	Strict bool           `json:"strict,omitempty"`
}

// PublishWeights publishes the weights of servers, for a day, and returns those of all workers
// together: of those published less than a minute before the latest. Without own it only reads. Costs
// one round trip.
func PublishWeights(ctx context.Context, rdb redis.UniversalClient, own ...Weights) (Weights, error) {
	var read *redis.ZSliceCmd
	now := time.Now()
	_, err := rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, w := range own {
			if len(w.queues) < 2 {
				continue
			}
			text, err := json.Marshal(published{w.queues, w.strict})
			if err != nil {
				return err
			}
			pipe.ZAdd(ctx, weightsKey, redis.Z{Score: float64(now.UnixMilli()), Member: text})
			pipe.ZRemRangeByScore(ctx, weightsKey, "-inf", strconv.FormatInt(now.Add(-weightsStay).UnixMilli(), 10))
			pipe.PExpire(ctx, weightsKey, weightsStay)
		}
		read = pipe.ZRevRangeWithScores(ctx, weightsKey, 0, mostWeights-1)
		return nil
	})
	if err != nil {
		return Weights{}, fmt.Errorf("queue: publish the weights of queues: %w", err)
	}
	return live(read.Val()), nil
}

// live returns the weights that count, from a list that begins with the latest. Entries that cannot be
// read are from a later release.
func live(list []redis.Z) Weights {
	var all []Weights
	latest := 0.0
	for _, z := range list {
		var p published
		text, _ := z.Member.(string)
		if err := json.Unmarshal([]byte(text), &p); err != nil {
			continue
		}
		latest = max(latest, z.Score)
		if latest-z.Score < float64(weightsLive.Milliseconds()) {
			all = append(all, NewWeights(p.Queues, p.Strict))
		}
	}
	return Together(all...)
}
