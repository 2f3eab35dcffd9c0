package redistest_test

const diesWithParent = true
