package wallclock

import (
	"strings"
	"time"
)

// Lacking returns the months of the expression in which one of its days of month does not exist. February
// lacks the 29th. It returns none for days that are written with a star, or with days of the week beside
// them: such an expression does not mean a day of each month.
func (s *Schedule) Lacking() (months []time.Month) {
	parts := strings.Fields(s.expr)
	if len(parts) != len(fields) || strings.ContainsAny(parts[dayOfMonth], "*?") || s.spec.Dow&star == 0 {
		return nil
	}
	written := s.spec.Dom
	if s.last {
		written = s.days
	}
	const all = 1<<29 - 2 // the 1st to the 28th
	if written&all == all {
		return nil
	}
	for month := time.January; month <= time.December; month++ {
		length := time.Date(2001, month+1, 0, 0, 0, 0, 0, time.UTC).Day() // not a leap year
		if has(s.spec.Month, int(month)) && written>>(length+1)<<(length+1)&^star != 0 {
			months = append(months, month)
		}
	}
	return months
}
