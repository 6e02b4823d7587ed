export interface Deployment {
  name: string;
  /** @asType integer */
  replicas: number;
  image?: string;
  labels?: Record<string, string>;
  env: { [name: string]: string | number };
  strategy: Rolling | Recreate;
  owner?: Owner | null;
}

interface Rolling {
  kind: "rolling";
  surge: `${number}%`;
}

interface Recreate {
  kind: "recreate";
}

interface Owner {
  /** @format email */
  mail: string;
  reports?: Owner[];
}
