package waitlist

import (
	"math/rand/v2"
	"time"
)

// SafetyNet returns after how long asynq brings a task back by itself that is expected to start after so long, if it is not granted
// its start before: 5 to 9 minutes after that, and 10 to 15 if no clock can tell.
func SafetyNet(expected time.Duration) time.Duration {
	if expected == Never {
		return 10*time.Minute + rand.N(5*time.Minute)
	}
	const year = 365 * 24 * time.Hour
	return min(expected, year) + 5*time.Minute + rand.N(4*time.Minute)
}
