package throttle

import "time"

// Starts returns when the granted start comes, by this process's clock.
func (g *Granted) Starts() time.Time {
	if g.begins.IsZero() { // its scope has no rules any more
		return time.Now().Add(g.Wait)
	}
	return g.begins
}
