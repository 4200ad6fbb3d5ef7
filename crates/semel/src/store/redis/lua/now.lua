-- {1, now}
return {1, now}
