package browser

import (
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/headway-go/headway/worker/page"
)

// "First paint from a cold start ≤ 300 ms in the test browser": BenchmarkFirstPaint opens the overview of a page that has read nothing yet,
// in a tab that has loaded nothing of it, and tells when the browser painted its content, from the beginning of the navigation.
func BenchmarkFirstPaint(b *testing.B) {
	s := newSite(b)
	s.fill()
	var paints []float64
	for b.Loop() {
		handler, err := page.New(page.Config{Redis: s.rdb, Local: "anna"})
		if err != nil {
			b.Fatal(err)
		}
		front := httptest.NewServer(handler) // another port, and so nothing of the cache
		ctx := tab(b)
		do(b, ctx, chromedp.Navigate(front.URL+"/"))
		paints = append(paints, eval[float64](b, ctx, `new Promise(done => new PerformanceObserver(list => {
			for (const e of list.getEntriesByName("first-contentful-paint")) done(e.startTime)
		}).observe({type: "paint", buffered: true}))`))
		if err := chromedp.Cancel(ctx); err != nil {
			b.Fatal(err)
		}
		front.CloseClientConnections() // the stream of the page
		front.Close()
	}
	slices.Sort(paints)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(paints[len(paints)/2], "paint-ms")
	b.ReportMetric(paints[len(paints)-1], "worst-paint-ms")
}
