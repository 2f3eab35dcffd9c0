package dispatch

import (
	"slices"
	"time"

	"github.com/headway-go/headway/throttle"
)

// A process that serves none of the queues whose tasks wait yields to those that do: they hand tasks to their own servers
// at the right moment, while this one can only put them into pending, where a server finds them when it looks. Since it
// cannot have such a server look, it would grant starts further ahead than they do, and so would always come first: a
// twentieth of a limit was lost.
const (
	// yieldsFor is how long after their start was due this process grants tasks of others.
	yieldsFor = 30 * time.Millisecond
	// aloneFor is how long it does not yield after nobody else granted them meanwhile.
	aloneFor = 10 * time.Second
)

// yield is whether one provider's loop yields. It is the loop's own.
type yield struct {
	others bool      // all tasks that were granted last are of queues that only other processes serve
	waited bool      // the look that is next comes late, for others to come first
	alone  time.Time // until when nobody else is counted on
}

// granted notes the queues of tasks that were granted.
func (y *yield) granted(queues []string, owns func(string) bool) {
	if len(queues) > 0 {
		y.others = !slices.ContainsFunc(queues, owns)
	}
}

// looked notes whether others came first, where this process has waited for them.
func (y *yield) looked(got []throttle.Granted, kicked bool) {
	if y.waited && !kicked && len(got) > 0 && got[0].Wait <= 0 {
		y.alone = time.Now().Add(aloneFor)
	}
}

// due is in how long to look where without others it would be soonest, and the next start is due.
func (y *yield) due(soonest, next time.Duration) time.Duration {
	y.waited = y.others && !time.Now().Before(y.alone)
	if y.waited {
		return next + yieldsFor
	}
	return soonest
}
