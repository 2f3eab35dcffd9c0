package main

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// The drawing has a row for each step of time, and as many starts in all as were added.
func TestStartPlot(t *testing.T) {
	t.Parallel()
	from := time.Date(2030, 1, 31, 12, 0, 0, 0, time.Local)
	var none *startPlot
	if none.String() != "" || newStartPlot(from).String() != "" {
		t.Error("nothing is drawn as something")
	}
	for _, test := range []struct {
		name  string
		apart time.Duration
		n     int
		want  []string
	}{
		{"at once", 0, 3, []string{"expected starts in each 1s:", "  12:00:00  " + strings.Repeat("#", plotWidth) + " 3"}},
		{"seconds", 500 * time.Millisecond, 8, []string{"each 1s:", "  12:00:00  ", " 2\n  12:00:01  "}},
		{"minutes", time.Second, 300, []string{"each 30s:", "  12:00:00  " + strings.Repeat("#", plotWidth) + " 30\n  12:00:30  "}},
		{"days", time.Hour, 48, []string{"each 6h:", "  Feb  1 12:00  "}},
		{"a year", 24 * time.Hour, 365, []string{"each 35d:"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := newStartPlot(from)
			for i := range test.n {
				p.add(from.Add(time.Duration(i) * test.apart))
			}
			text := p.String()
			for _, want := range test.want {
				if !strings.Contains(text, want) {
					t.Errorf("no %q in\n%s", want, text)
				}
			}
			sum, rows := 0, strings.Split(strings.TrimSuffix(text, "\n"), "\n")[1:]
			for _, row := range rows {
				var n int
				if _, err := fmt.Sscan(row[strings.LastIndex(row, " ")+1:], &n); err != nil {
					t.Fatal(err)
				}
				sum += n
			}
			if sum != test.n || len(rows) > plotRows {
				t.Errorf("%d starts in %d rows, of %d:\n%s", sum, len(rows), test.n, text)
			}
		})
	}
}
